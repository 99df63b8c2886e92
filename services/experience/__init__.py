"""Experience: events in; ClickHouse rows and `SampleReady` events out."""
