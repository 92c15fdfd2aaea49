#include "longspan/session/row_pass.h"

#include <optional>

#include "longspan/kernels/dropout.h"

namespace longspan {

RowPass::RowPass(const ObjectiveContext& context, Objective& objective, ExpertBalance* balance,
                 ModelUpdate& update, RowTraffic& traffic, int64_t seed)
    : context_(context),
      objective_(objective),
      balance_(balance),
      update_(update),
      traffic_(traffic),
      seed_(seed) {}

void RowPass::look_at(std::span<const Row> rows, int64_t step) {
  objective_.begin();
  if (objective_.precomputes()) {
    for (const Row& row : rows) {
      context_.model.use_attention(*row.attention);
      objective_.precompute(row);
    }
    objective_.end_precompute();
  }
  if (!balance_) return;
  balance_->begin();
  if (!balance_->precomputes()) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    context_.model.set_dropout_seed(dropout_seed(step, rows[i], i));
    context_.model.use_attention(*rows[i].attention);
    balance_->precompute(rows[i]);
    context_.model.set_dropout_seed(std::nullopt);
  }
  balance_->end_precompute();
}

at::Tensor RowPass::run(const Row& row, size_t number, int64_t step, double total_weight,
                        Averages& averages) {
  traffic_.begin_row();
  context_.model.set_dropout_seed(dropout_seed(step, row, number));
  context_.model.use_attention(*row.attention);
  if (balance_) balance_->open();
  const at::Tensor contribution = objective_.loss(row, number, total_weight, averages);
  context_.model.set_dropout_seed(std::nullopt);
  if (balance_) {
    balance_->close();
    balance_->count_step();
  }
  traffic_.end_forward(row.local.packing);
  contribution.backward();
  update_.end_backward();
  traffic_.end_backward();
  return contribution.detach();
}

uint64_t RowPass::dropout_seed(int64_t step, const Row& row, size_t row_number) const {
  uint64_t seed = mix_seed(static_cast<uint64_t>(seed_), static_cast<uint64_t>(step));
  // Ranks that share a row of their own have different numbers of earlier rows.
  if (row.sharers().size() != context_.mesh.sequence.size()) {
    return mix_seed(seed, static_cast<uint64_t>(row.examples.front()->number));
  }
  seed = mix_seed(seed, static_cast<uint64_t>(row_number));
  return mix_seed(seed, static_cast<uint64_t>(context_.mesh.data.rank()));
}

}  // namespace longspan
