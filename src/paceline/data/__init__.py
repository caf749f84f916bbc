"""Training data: samples, their partition into one shard per worker, and mini-batches drawn from the shards."""
