-- Replaced parts are removed one after the other. More than 100 at once would be given to a pool that starts 128 threads, each of which
-- then keeps three files open for ever: in the embedded store they would be the service's own.
ALTER TABLE records MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE reports MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE samples MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE sessions MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE steps MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE refusals MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE releases MODIFY SETTING concurrent_part_removal_threshold = 1000000;
ALTER TABLE servings MODIFY SETTING concurrent_part_removal_threshold = 1000000;
