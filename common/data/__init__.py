"""Labelled images and public datasets; nothing here is private."""
