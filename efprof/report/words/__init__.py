"""What every rendering of a report says: verdict, tables, order of findings."""
