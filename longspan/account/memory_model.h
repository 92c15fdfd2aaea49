// Memory of one rank, by formula. No torch. A row is one sequence or several packed sequences.
// Several ranks may share a row.
//
// Memory is either device memory (for computation) or host memory (for offloading). The formulas
// count the tensors that exist at the peak of a step, not the overhead of allocators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "longspan/memory/measured_peak.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/spec/composed_rule.h"
#include "longspan/spec/expert_casts.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// The sum of gradients over the ranks that shard it.
enum class GradientReduction {
  kExchange,        ///< all-to-all, then a sum in the order of ranks
  kScatter,         ///< NCCL's reduce-scatter
  kWidenedScatter,  ///< the same, of bf16 gradients in fp32
};

/// Inputs of the memory estimate. Bytes of an element: 4 for fp32, 2 for bf16.
struct MemoryFacts {
  // Model
  int64_t hidden_size = 0, vocab_size = 0;
  struct Layers {
    LayerCost cost;
    int64_t count = 0;            // number of such layers
    AttentionMemory shared = {};  // memory that sequence parallelism adds to the token mixer
    /// Number of kept layers of this kind: layers whose feed-forward tensors checkpointing keeps.
    /// If the model's last layer is of this kind and the number is not 0, the last layer is a kept
    /// layer.
    int64_t kept = 0;
    ExpertCasts casts = {};   // without experts: none
    RuleMemory rule = {};     // of a recurrence that a GPU computes in parts of the row
    int64_t rule_tokens = 0;  // of a call of the rule
  };
  std::vector<Layers> layers;
  bool scales_embedding = false;
  size_t last_layer = 0;      // index of the last layer's kind in `layers`
  int64_t angle_numbers = 0;  // elements of the rotary table per token, in fp32
  // Parameters, as if this process alone held all parameters
  int64_t parameter_bytes = 0;          // all
  int64_t trained_parameter_bytes = 0;  // of trained parameters
  int64_t num_trained = 0;
  /// Parameters that are used together: the embedding's, each layer's, the head's.
  struct Unit {
    int64_t gathered = 0;   // bytes gathered for each use
    int64_t unpacked = 0;   // bytes of matrices that are held in 4 or 8 bits, as they are used
    int64_t product = 0;    // temporary bytes of a product with codes of such a matrix
    int64_t sent = 0;       // bytes of this rank's shard that are copied before a gather
    int64_t gradients = 0;  // bytes of the gradients
  };
  struct Units {
    Unit embedding = {}, head = {};  // tied embedding: counted in head
    std::vector<Unit> layers = {};   // empty: unknown
    bool head_is_embedding = false;
  } units;
  /// A step has several rows, so gradients of earlier rows exist.
  bool accumulates = true;
  int64_t update_bytes = 0;        // temporary bytes of the gradient reduction and the update
  int64_t largest_unit_bytes = 0;  // parameters of the largest unit
  int64_t largest_unpacked = 0;    // Unit::unpacked of the largest unit
  int64_t largest_unit_gradient_bytes = 0;  // bytes of the largest gradients of a unit
  int64_t reference_on_device = 0, reference_on_host = 0;  // the reference model on one rank
  // Distribution of states
  int64_t zero_stage = 0, shard_size = 1;  // ranks that hold one sharded copy
  /// expert_parallel_size: ranks that distribute the experts; 1: each rank has all experts.
  /// expert_shard_size: ranks that together hold one copy of a rank's experts.
  /// num_trained_of_experts, trained_expert_bytes: the experts' part of num_trained and
  /// trained_parameter_bytes.
  int64_t expert_parallel_size = 1, expert_shard_size = 1;
  GradientReduction reduction = GradientReduction::kExchange;
  /// The sums of a step start in the backward of its last row, a unit at a time (always from stage
  /// 2 on).
  bool sums_units = false;
  int64_t bucket_bytes = 0;  // GradientSums::bucket_bytes
  bool widens_sums = false;  // GradientSums::widens
  int64_t num_trained_of_experts = 0, trained_expert_bytes = 0;
  bool offload_optimizer = false, offload_params = false;
  /// Parameter bytes per rank between uses; -1: derive from zero_stage.
  int64_t held_on_device = -1, held_on_host = 0;
  double optimizer_bytes = 8;    // mean bytes per trained element; 8: two fp32 moments
  int64_t saved_copy_bytes = 0;  // host memory of the copies for a checkpoint (saved_copy.h)
  int64_t master_bytes = 0;      // bytes per trained element of a copy in higher precision
  // The row
  int64_t num_tokens = 0;         // tokens of the longest row
  int64_t num_labels = 0;         // labels of that row
  int64_t sequence_size = 1;      // ranks that share the row
  int64_t num_documents = 1;      // of the row
  bool attends_in_calls = false;  // a GPU computes the row's attention in several calls
  /// Positions restart inside a document, so each token's place in its document is stored too.
  bool keeps_places = false;
  // Computation
  int64_t residual_bytes = 4, compute_bytes = 4;
  bool widens_attention = false;  // bf16 on a CPU: attention's backward is in fp32
  bool checkpointing = true, offload_activations = false, in_file = false;
  bool reads_ahead = false;  // prefetches the next block during a block's attention backward
  int64_t mlp_tiles = 0;
  bool drops_inputs = false;    // adapters have dropout (lora_dropout)
  bool has_magnitudes = false;  // of adapters (use_dora)
  /// Matrices are held in higher precision than the compute dtype. Each matrix in use has a cast
  /// copy.
  bool casts_blocks = false, casts_head = false;
  /// Matrices have bf16 gradients. While matrices are in use, their gradients accumulate in fp32
  /// over the chunks of a row.
  bool sums_blocks_apart = false, sums_head_apart = false;
  /// A GPU computes all experts of a layer in one grouped gemm, if the layer's cost allows a
  /// grouped gemm (GroupedCost).
  bool experts_at_once = false;
  int64_t expert_adapter_rank = 0;     // 0: experts have no adapters
  bool casts_expert_adapters = false;  // held in higher precision than the compute dtype
  /// A library's grouped gemm may compute experts, and copies rows (spec/expert_gemms.h).
  bool copies_rows_of_experts = false;
  bool cuda = false;           // runs on a GPU, with its chunk sizes (spec/device_sizes.h)
  bool composes_rows = false;  // on a GPU: ATen's operators compute the passes over rows
  /// Multiprocessors of a GPU that computes the same bits each time; 0: the bits may differ.
  int64_t deterministic_multiprocessors = 0;
  int64_t num_groups = 0;         // communication groups of this process (plan/rank_groups.h)
  int64_t attention_threads = 0;  // threads of a CPU's flash attention
  /// The vision tower, and the pictures of the rank with the most patches of a row.
  struct Tower {
    VisionSpec spec = {};
    int64_t num_patches = 0;    // 0: no pictures
    int64_t rows_ahead = 1;     // rows of this and the next step whose pixels may be in memory
    int64_t most_features = 0;  // features of the row, on a rank that holds all picture tokens
    int64_t largest_frame = 0;  // patches of the largest frame
    int64_t residual_bytes = 4;
    /// The lowest block that saves tensors for the backward. spec.depth: only the merger saves
    /// tensors. A larger number: the tower has no backward.
    int64_t first_saving_block = 0;
  } tower;
  /// The reference model, if it is a separate model; its passes save no tensors. Null: no such
  /// model.
  std::shared_ptr<const MemoryFacts> reference = {};
  /// The reference is a teacher, which computes a row within the row's loss. The logits of both
  /// models exist together (kernels/linear_divergence.h).
  struct Divergence {
    bool is_computed = false;
    bool mixes = false;  // a mixture of both distributions
    int64_t top_k = 0;   // 0: the whole vocabulary
  } divergence = {};
};

/// Bytes of one rank.
struct MemoryAccount {
  struct Line {
    std::string name;
    int64_t device = 0, host = 0;
    std::string note;  // bytes per token, or the kind of sharding
  };
  std::vector<Line> lines;
  int64_t device = 0, host = 0;           // sum of all tensors
  int64_t beside_tensors = 0;             // on the device: memory of the driver and libraries
  double activation_bytes_per_token = 0;  // device bytes per token of one rank
};

MemoryAccount account_of(const MemoryFacts& facts);

/// Device bytes per token. `saved`: saved by all layers. `working`: temporary bytes at the peak.
struct TokenBytes {
  double saved = 0, working = 0;
  double kept = 0;     // tensors of kept layers; not in `saved`
  double on_host = 0;  // saved on the host
};
TokenBytes token_bytes(const MemoryFacts& facts);

/// Returns a small table. `by_rank`: adds the measured peaks to the line of the sum.
std::string table_of(const MemoryAccount& account);
std::string table_of(const MemoryAccount& account, const std::vector<MeasuredPeak>& by_rank);

}  // namespace longspan
