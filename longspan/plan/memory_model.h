// What one rank of a run holds in memory, by formula. No torch.
//
// Memory has two roles: device (where we compute) and host (where we offload). The formulas count
// the tensors that live at once at the fullest moment of a step, not what allocators hold around
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/plan/attention_memory.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// The numbers that the account is made from. Bytes of an element: 4 for fp32, 2 for bf16.
struct MemoryFacts {
  // Model
  int64_t hidden_size = 0, vocab_size = 0;
  struct Layers {
    LayerCost cost;
    int64_t count = 0;            // layers that are alike
    AttentionMemory shared = {};  // what a mixer adds of which ranks share the row
    /// Of these layers, those that checkpointing keeps what the feed-forward saves of; where there
    /// are some of the last layer's kind, the last one is among them.
    int64_t kept = 0;
  };
  std::vector<Layers> layers;
  bool scales_embedding = false;
  size_t last_layer = 0;      // the last layer's place among them
  int64_t angle_numbers = 0;  // of the rotations of a token, in fp32
  // Parameters as this process would hold them alone
  int64_t parameter_bytes = 0;          // all
  int64_t trained_parameter_bytes = 0;  // of those that are trained
  int64_t num_trained = 0;
  /// Of parameters that are used together: those of the embedding, of each layer, of the head.
  struct Unit {
    int64_t gathered = 0;   // bytes of those that are gathered for each use
    int64_t sent = 0;       // of the share of them that is made to be sent
    int64_t gradients = 0;  // of the gradients that they have
  };
  struct Units {
    Unit embedding = {}, head = {};  // where the head is the embedding, all of it is the head's
    std::vector<Unit> layers = {};   // none: nothing is known of them
    bool head_is_embedding = false;
  } units;
  /// A step has several rows: of the others, gradients are there.
  bool accumulates = true;
  int64_t update_bytes = 0;        // that the sums of gradients and the update work with
  int64_t largest_unit_bytes = 0;  // parameters of the largest block, or embedding, or head
  int64_t largest_unit_gradient_bytes = 0;                 // of the most that are trained together
  int64_t reference_on_device = 0, reference_on_host = 0;  // a second model's, on one rank
  // How states are held
  int64_t zero_stage = 0, shard_size = 1;  // ranks that hold one divided copy
  /// Ranks that share out experts, and those that hold one divided copy of the experts that a rank
  /// has; of what is trained, those experts' part. 1 and 0: each rank has all experts.
  int64_t expert_parallel_size = 1, expert_shard_size = 1;
  int64_t num_trained_of_experts = 0, trained_expert_bytes = 0;
  bool offload_optimizer = false, offload_params = false;
  /// Resident parameter bytes per rank between uses; -1: derive from zero_stage.
  int64_t held_on_device = -1, held_on_host = 0;
  double optimizer_bytes = 8;  // for each trained element, on the mean: two moments in fp32
  int64_t master_bytes = 0;    // for each trained element: a copy of more precision
  // The row
  int64_t num_tokens = 0;     // of the longest row
  int64_t num_labels = 0;     // of it
  int64_t sequence_size = 1;  // ranks that share it
  bool keeps_places = false;  // positions restart in documents, whose tokens are also counted
  // Computation
  int64_t residual_bytes = 4, compute_bytes = 4;
  bool widens_attention = false;  // bf16 on a CPU: the backward is in fp32
  bool checkpointing = true, offload_activations = false, in_file = false;
  bool reads_ahead = false;  // prefetches the next block during a block's attention backward
  int64_t mlp_tiles = 0;
  bool drops_inputs = false;  // of adapters (lora_dropout)
  /// Matrices are held in more precision than they are used in; those in use have a cast copy.
  bool casts_blocks = false, casts_head = false;
  /// Matrices have bf16 gradients; those in use are summed in fp32 over the chunks of a row.
  bool sums_blocks_apart = false, sums_head_apart = false;
  /// A GPU works on all experts of a layer at once, where their cost allows it (GroupedCost).
  bool experts_at_once = false;
  int64_t expert_adapter_rank = 0;  // 0: experts have no adapters
  bool cuda = false;                // computes on a GPU, by its sizes (spec/device_sizes.h)
  int64_t num_groups = 0;           // of processes that this one is in (plan/rank_groups.h)
  int64_t attention_threads = 0;    // of a CPU's flash attention
};

/// Bytes of one rank.
struct MemoryAccount {
  struct Line {
    std::string name;
    int64_t device = 0, host = 0;
    std::string note;  // per token, or how it is divided
  };
  std::vector<Line> lines;
  int64_t device = 0, host = 0;           // tensors in all
  int64_t beside_tensors = 0;             // of the device: what a GPU and its libraries take
  double activation_bytes_per_token = 0;  // of the device, of one rank's token
};

MemoryAccount account_of(const MemoryFacts& facts);

/// Bytes that one token costs the device: what all layers save, and what the fullest moment
/// works with.
struct TokenBytes {
  double saved = 0, working = 0;
  double kept = 0;     // of feed-forwards, under checkpointing; not in `saved`
  double on_host = 0;  // saved there
};
TokenBytes token_bytes(const MemoryFacts& facts);

/// Peaks that were measured on one rank, in bytes.
struct MeasuredPeak {
  int64_t device = 0;    // tensors in the device's role
  int64_t host = 0;      // and in the host's
  int64_t resident = 0;  // of the whole process (VmHWM); 0 where unknown
  int64_t reserved = 0;  // of a GPU, by torch's allocator: tensors, and gaps between them
};
/// A small table; `by_rank` adds the measured peaks beside the sum.
std::string table_of(const MemoryAccount& account);
std::string table_of(const MemoryAccount& account, const std::vector<MeasuredPeak>& by_rank);

}  // namespace longspan
