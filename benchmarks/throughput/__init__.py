"""Parts of benchmarks/throughput_matrix.py."""
