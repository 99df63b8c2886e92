"""Experience: events in; ClickHouse rows and `SampleReady` events out. The only writer of ClickHouse."""
