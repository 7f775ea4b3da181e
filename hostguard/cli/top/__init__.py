"""`hostguard top`. Pure: model, draw, keys. With I/O: ask (the daemon), terminal (curses), loop."""
