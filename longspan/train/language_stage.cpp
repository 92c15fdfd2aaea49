// pt and sft: token cross-entropy.
#include <algorithm>
#include <cmath>

#include "longspan/objectives/sft.h"
#include "longspan/train/stage.h"

namespace longspan {
namespace {

class LanguageStage : public Stage {
 public:
  explicit LanguageStage(const StageContext& context) : model_(context.model) {}

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

std::unique_ptr<Stage> make_language_stage(const StageContext& context) {
  return std::make_unique<LanguageStage>(context);
}

}  // namespace longspan
