// The mean over all labels of -log p, with a factor for each label under use_dft_loss and
// use_eaft_loss, and the divergence from a reference under use_asft_loss.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "longspan/memory/transfer.h"
#include "longspan/objectives/document_scores.h"
#include "longspan/objectives/sft.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

/// The logged value is eval_accuracy, as in LLaMA-Factory.
constexpr const char* kAccuracy = "accuracy";

class TokenCrossEntropy : public Objective {
 public:
  explicit TokenCrossEntropy(const ObjectiveContext& context) : context_(context) {
    const PreferenceSettings& config = context.preferences;
    if (config.use_dft_loss) factors_ = dft_factors;
    if (config.use_eaft_loss) {
      factors_ = [alpha = config.eaft_alpha](const LossChunk& chunk) {
        return eaft_factors(chunk, alpha);
      };
    }
  }

  double weight(const Row& row) const override {
    return static_cast<double>(count_labels(row.whole));
  }
  bool replicated() const override { return false; }
  std::vector<std::string> averages() const override {
    if (!context_.preferences.compute_accuracy) return {};
    return {kAccuracy};
  }
  at::Tensor loss(const Row& row, size_t, double total_weight, Averages& averages) override {
    const int64_t count = std::max<int64_t>(1, std::llround(total_weight));
    const bool evaluates = !at::GradMode::is_enabled();
    if (!evaluates || !context_.preferences.compute_accuracy) {
      return loss_of(row, count, factors_);
    }
    std::vector<at::Tensor> hits{at::empty({0}, row.local.labels_T.options().dtype(at::kDouble))};
    const LossFactors visit = [&](const LossChunk& chunk) {
      hits.push_back(chunk.logits_CV.argmax(1).eq(chunk.labels_C).to(at::kDouble));
      return factors_ ? factors_(chunk) : at::ones_like(chunk.nll_C);
    };
    const at::Tensor loss = loss_of(row, count, visit);
    add_accuracy(row, at::cat(hits), averages);
    return loss;
  }

 private:
  at::Tensor loss_of(const Row& row, int64_t count, const LossFactors& factors) const {
    const PreferenceSettings& config = context_.preferences;
    if (!config.use_asft_loss) return sft_loss(context_.model, row.local, count, factors);
    return asft_loss(context_.model, row.local, context_.reference->teacher_head(row),
                     config.asft_alpha, count, factors);
  }

  /// hits_L: 1 where the most probable token is the label, else 0. The mean over examples of the
  /// share of hits among the example's labels, which the ranks of the row hold together.
  void add_accuracy(const Row& row, const at::Tensor& hits_L, Averages& averages) const {
    const int64_t D = row.num_documents();
    if (D == 0) return;  // an idle row
    const at::Tensor counts = document_label_counts(row.whole, D);
    std::vector<double> shares(D, 0.0);  // by document
    double num_examples = 0;
    for (int64_t first = 0, end = 0; first < D; first = end) {
      double labels = 0;
      for (; end < D && row.documents[end].example == row.documents[first].example; ++end) {
        labels += counts[end].item<double>();
      }
      if (labels == 0) continue;
      num_examples += 1;
      std::fill(shares.begin() + first, shares.begin() + end, 1 / labels);
    }
    const at::Tensor shares_D = sent_to(at::tensor(shares, at::kDouble), context_.device);
    const at::Tensor documents_L = row.local.documents_T.index_select(0, label_rows(row.local));
    at::Tensor sum = (hits_L * shares_D.index_select(0, documents_L)).sum();
    row.sharers().sum_(sum);
    averages.add({{kAccuracy, sum}}, num_examples);
  }

  const ObjectiveContext context_;
  LossFactors factors_;
};

}  // namespace

std::unique_ptr<Objective> make_token_cross_entropy(const ObjectiveContext& context) {
  return std::make_unique<TokenCrossEntropy>(context);
}

}  // namespace longspan
