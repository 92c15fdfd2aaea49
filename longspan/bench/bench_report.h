// The results of a benchmark as a table, a file and a picture.
#pragma once

#include <string>

#include "longspan/bench/attention_bench.h"

namespace longspan {

/// For a terminal; explains its columns.
std::string bench_table(const AttentionBenchResult& result);

/// Everything, each repeat and each rank.
std::string bench_json(const AttentionBenchResult& result);

/// Time, bytes, load and memory, a bar a method. Throws UserError when it cannot be written.
void write_bench_picture(const std::string& png_path, const AttentionBenchResult& result);

/// "8 query and 2 kv heads of 64, 8,192 tokens in 1 document, fp32, 2 ranks with 1 thread each".
std::string describe(const AttentionBenchResult& result);

}  // namespace longspan
