"""The texts to learn from: read in place, encoded as the teacher's chat template says, packed into sequences.

A record of the file becomes a document (`encode`), documents become packed sequences (`stream`). Nothing holds the corpus:
`corpus` keeps eight bytes for each record, and the stream a window of documents.
"""
