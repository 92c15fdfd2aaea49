// The results of a benchmark as a table, a JSON file and a picture.
#pragma once

#include <string>

#include "longspan/bench/attention_bench.h"

namespace longspan {

/// Returns the table for a terminal, with an explanation of its columns.
std::string bench_table(const AttentionBenchResult& result);

/// Returns all results as JSON, with each repeat and each rank.
std::string bench_json(const AttentionBenchResult& result);

/// Writes bar charts of time, bytes, load and memory, with one bar for each method. Throws
/// UserError where the file cannot be written.
void write_bench_picture(const std::string& png_path, const AttentionBenchResult& result);

/// Returns "8 query and 2 kv heads of 64, 8,192 tokens in 1 document, fp32, 2 ranks with 1 thread
/// each".
std::string describe(const AttentionBenchResult& result);

}  // namespace longspan
