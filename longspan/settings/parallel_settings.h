// Sequence parallelism, expert parallelism and launching. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct ParallelSettings {
  int64_t ddp_timeout = 1800;
  int expert_parallel_size = 1;
  int sequence_parallel_size = 1;
  std::optional<std::string> sequence_parallel_mode;  // not set or "auto": chosen by the program
  std::optional<int> sequence_parallel_ulysses_degree, sequence_parallel_ring_degree;
  std::optional<int> sequence_parallel_window_size, sequence_parallel_head_waves;
  std::optional<int> nproc_per_node;
};

}  // namespace longspan
