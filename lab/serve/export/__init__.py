"""Write runs and recordings in the formats of other tools: Perfetto, Chrome, spreadsheets, Parquet."""
