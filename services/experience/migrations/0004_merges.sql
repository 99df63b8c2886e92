-- Rows come in small blocks as they happen. By default each block is merged into the large part at once, so that every few rows rewrite
-- megabytes: seen as 30 MB on disk for each thousand exchanges, growing with the table. Twenty blocks are merged together instead, and
-- the choice of them is not trimmed to the large one and its neighbours.
ALTER TABLE records MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE reports MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE samples MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE sessions MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE steps MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE refusals MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE releases MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
ALTER TABLE servings MODIFY SETTING min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
