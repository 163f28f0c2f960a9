"""A Kineto trace, ours or anybody's, read into columns: `blocks` cuts the text, `events` decodes, `columns` keeps."""
