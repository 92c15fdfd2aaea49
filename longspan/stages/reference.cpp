#include "longspan/stages/reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <stdexcept>

#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

at::Tensor logprobs_of(Decoder& model, const Row& row, double temperature) {
  return model.token_scores(row.local, {.temperature = temperature}).logprobs_L;
}

/// The base model of a model with adapters, while in scope.
struct WithoutAdapters {
  Decoder& model;
  explicit WithoutAdapters(Decoder& m) : model(m) { model.use_adapters(false); }
  ~WithoutAdapters() { model.use_adapters(true); }
};

class Model : public Reference {
 public:
  Model(std::unique_ptr<Decoder> model, std::unique_ptr<PictureFeatures> pictures,
        std::unique_ptr<ShardedParameters> sharded, bool follows_rows)
      : sharded_(std::move(sharded)),
        pictures_(std::move(pictures)),
        model_(std::move(model)),
        follows_rows_(follows_rows) {}

  at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) override {
    const at::NoGradGuard no_grad;
    return longspan::document_logprobs(model_for(row), row.local, row.num_documents(), sum_over);
  }
  at::Tensor token_logprobs(const Row& row, double temperature) override {
    const at::NoGradGuard no_grad;
    return logprobs_of(model_for(row), row, temperature);
  }
  TeacherHead teacher_head(const Row& row) override {
    return model_for(row).teacher_head(row.local);
  }
  ShardedParameters::HeldBytes held_bytes() const override {
    if (sharded_) return sharded_->held_bytes();
    ShardedParameters::HeldBytes held;
    for (const auto& [name, tensor] : model_->parameters()) {
      held.device += tensor.numel() * static_cast<int64_t>(tensor.element_size());
    }
    return held;
  }

 private:
  Decoder& model_for(const Row& row) {
    if (follows_rows_) model_->use_attention(*row.attention);
    return *model_;
  }

  std::unique_ptr<ShardedParameters> sharded_;
  std::unique_ptr<PictureFeatures> pictures_;
  std::unique_ptr<Decoder> model_;
  bool follows_rows_;
};

class BaseModel : public Reference {
 public:
  explicit BaseModel(Decoder& model) : model_(model) {}

  at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) override {
    const at::NoGradGuard no_grad;
    const WithoutAdapters scope(model_);
    return longspan::document_logprobs(model_, row.local, row.num_documents(), sum_over);
  }
  at::Tensor token_logprobs(const Row& row, double temperature) override {
    const at::NoGradGuard no_grad;
    const WithoutAdapters scope(model_);
    return logprobs_of(model_, row, temperature);
  }
  /// The head has no adapter. The trained model holds it for as long as it is used.
  TeacherHead teacher_head(const Row& row) override {
    const WithoutAdapters scope(model_);
    const TeacherHead head = model_.teacher_head(row.local);
    return {head.hidden_LE, head.weight_VE};
  }

 private:
  Decoder& model_;
};

class Table : public Reference {
 public:
  explicit Table(ReferenceTable table) : table_(std::move(table)) {}

  at::Tensor document_logprobs(const Row& row, const SumOver&) override {
    std::vector<double> values;
    for (const DocumentOf& document : row.documents) {
      values.push_back(table_.at(document.example->number).at(document.number));
    }
    return sent_to(at::tensor(values, at::kDouble), row.local.tokens_T.device());
  }
  at::Tensor token_logprobs(const Row&, double) override {
    throw std::logic_error("a table has log-probabilities of documents only");
  }

 private:
  ReferenceTable table_;
};

}  // namespace

TeacherHead Reference::teacher_head(const Row&) {
  throw std::logic_error("the reference has no model of its own");
}

std::unique_ptr<Reference> reference_model(std::unique_ptr<Decoder> model,
                                           std::unique_ptr<PictureFeatures> pictures,
                                           std::unique_ptr<ShardedParameters> sharded,
                                           bool follows_rows) {
  return std::make_unique<Model>(std::move(model), std::move(pictures), std::move(sharded),
                                 follows_rows);
}

std::unique_ptr<Reference> base_model_reference(Decoder& model) {
  return std::make_unique<BaseModel>(model);
}

std::unique_ptr<Reference> reference_table(ReferenceTable table) {
  return std::make_unique<Table>(std::move(table));
}

}  // namespace longspan
