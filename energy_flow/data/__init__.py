"""The data: sentence pairs, their teacher embeddings, the dataset on disk and its loader."""
