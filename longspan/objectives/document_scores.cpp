#include "longspan/objectives/document_scores.h"

#include <ATen/ATen.h>

#include <vector>

#include "longspan/kernels/dropout.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

/// Key of the value head's dropout; LoRA's layers count from 0.
constexpr uint64_t kValueHeadUse = ~uint64_t{0};

at::Tensor sum_by_document(const at::Tensor& x_L, const Batch& batch, int64_t num_documents) {
  const at::Tensor documents_L = batch.documents_T.index_select(0, label_rows(batch));
  return at::zeros({num_documents}, x_L.options().dtype(at::kDouble))
      .index_add(0, documents_L, x_L.to(at::kDouble));
}

}  // namespace

at::Tensor document_logprobs(Decoder& model, const Batch& local, int64_t num_documents,
                             const SumOver& sum_over) {
  return sum_over(sum_by_document(model.token_logprobs(local), local, num_documents));
}

at::Tensor document_label_counts(const Batch& row, int64_t num_documents) {
  return sum_by_document(at::ones({count_labels(row)}, at::kDouble), row, num_documents);
}

Batch with_labels_at_ends(Batch row, int64_t num_documents) {
  const int64_t T = row.tokens_T.numel();
  std::vector<int64_t> last(num_documents, -1);
  const int64_t* documents = row.documents_T.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < T; ++t) {
    if (documents[t] >= 0) last[documents[t]] = t;
  }
  row.labels_T = at::full({T}, kIgnoreLabel, at::kLong);
  row.label_rows_L = at::Tensor();
  row.labels_T.index_fill_(0, at::tensor(last, at::kLong), 0);
  return row;
}

at::Tensor document_values(Decoder& model, const ValueHead& head, const Batch& local,
                           int64_t num_documents, const SumOver& sum_over) {
  const at::Tensor rows_L = label_rows(local);
  const at::ScalarType dtype = arithmetic_dtype(head.weight_1D.scalar_type());
  at::Tensor hidden_LD = model.hidden_states(local, rows_L).to(dtype);
  if (const auto seed = model.dropout_seed(); seed && head.dropout > 0) {
    const Dropout drops{head.dropout, mix_seed(*seed, kValueHeadUse),
                        token_keys(local).index_select(0, rows_L)};
    // Not in bf16: it would round 1 / (1 - p) the same way for all elements.
    hidden_LD = hidden_LD * drops.apply(at::ones_like(hidden_LD));
  }
  const at::Tensor values_L =
      at::linear(hidden_LD, head.weight_1D.to(dtype), head.bias_1.to(dtype)).squeeze(1);
  return sum_over(sum_by_document(values_L, local, num_documents));
}

}  // namespace longspan
