// The mean over all labels of -log p.
#include <algorithm>
#include <cmath>

#include "longspan/objectives/sft.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

class TokenCrossEntropy : public Objective {
 public:
  explicit TokenCrossEntropy(const ObjectiveContext& context) : model_(context.model) {}

  double weight(const Row& row) const override {
    return static_cast<double>(count_labels(row.whole));
  }
  bool replicated() const override { return false; }
  at::Tensor loss(const Row& row, size_t, double total_weight, Averages&) override {
    return sft_loss(model_, row.local, std::max<int64_t>(1, std::llround(total_weight)));
  }

 private:
  Decoder& model_;
};

}  // namespace

std::unique_ptr<Objective> make_token_cross_entropy(const ObjectiveContext& context) {
  return std::make_unique<TokenCrossEntropy>(context);
}

}  // namespace longspan
