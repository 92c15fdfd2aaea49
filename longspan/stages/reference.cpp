#include "longspan/stages/reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

class Model : public Reference {
 public:
  Model(std::unique_ptr<Decoder> model, std::unique_ptr<PictureFeatures> pictures,
        std::unique_ptr<ShardedParameters> sharded)
      : sharded_(std::move(sharded)), pictures_(std::move(pictures)), model_(std::move(model)) {}

  at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) override {
    const at::NoGradGuard no_grad;
    return longspan::document_logprobs(*model_, row.local, row.num_documents(), sum_over);
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
  std::unique_ptr<ShardedParameters> sharded_;
  std::unique_ptr<PictureFeatures> pictures_;
  std::unique_ptr<Decoder> model_;
};

class BaseModel : public Reference {
 public:
  explicit BaseModel(Decoder& model) : model_(model) {}

  at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) override {
    const at::NoGradGuard no_grad;
    struct WithoutAdapters {
      Decoder& model;
      explicit WithoutAdapters(Decoder& m) : model(m) { model.use_adapters(false); }
      ~WithoutAdapters() { model.use_adapters(true); }
    } const scope(model_);
    return longspan::document_logprobs(model_, row.local, row.num_documents(), sum_over);
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

 private:
  ReferenceTable table_;
};

}  // namespace

std::unique_ptr<Reference> reference_model(std::unique_ptr<Decoder> model,
                                           std::unique_ptr<PictureFeatures> pictures,
                                           std::unique_ptr<ShardedParameters> sharded) {
  return std::make_unique<Model>(std::move(model), std::move(pictures), std::move(sharded));
}

std::unique_ptr<Reference> base_model_reference(Decoder& model) {
  return std::make_unique<BaseModel>(model);
}

std::unique_ptr<Reference> reference_table(ReferenceTable table) {
  return std::make_unique<Table>(std::move(table));
}

}  // namespace longspan
