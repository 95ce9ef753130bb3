"""Recordings: from sound files to windows, a classifier of birds, and detections."""
