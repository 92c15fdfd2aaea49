#include <c10/util/Exception.h>

#include "longspan/attention/leaf_attention.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/rows/share_of.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {
namespace {

class Local : public SequenceParallel {
 public:
  explicit Local(const BlockKernel& kernel) : kernel_(kernel) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    return leaf_attention(kernel_, inputs, spec, packing, checkpoint);
  }

  int rank() const override { return 0; }
  std::shared_ptr<const WholeRow> whole_row(const Packing& /*packing*/) const override {
    return nullptr;
  }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    return consecutive_order(packing, multiple, rank, /*num_ranks=*/1);
  }

 private:
  const BlockKernel& kernel_;
};

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& /*mesh*/,
                                       const BlockKernel& kernel) {
  TORCH_CHECK(plan.sequence_size == 1, "local attention sees one rank's tokens, and ",
              plan.sequence_size, " ranks share a row");
  return make_local(kernel);
}

std::string refusal(int num_ranks, const AttentionShape& /*heads*/) {
  return num_ranks == 1 ? "" : "is for one rank to a row";
}

}  // namespace

std::unique_ptr<SequenceParallel> make_local(const BlockKernel& kernel) {
  return std::make_unique<Local>(kernel);
}

extern const Method kLocal{
    .name = "local",
    .keys = {},
    .head_waves = kOneWave,
    .refusal = refusal,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry_of_whole_heads,
    .context_seconds = keys_at_hand,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .memory = nothing_beside,
    .make = make,
};

}  // namespace longspan
