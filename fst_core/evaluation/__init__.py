"""Pure measurement: nothing here changes weights, contexts or anyone's random draws."""
