#include "longspan/layers/recurrent_row.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace longspan {

at::Tensor last_rows(const at::Tensor& x_SJ, const at::Tensor& before_PJ, int64_t size) {
  const int64_t own = std::min(size, x_SJ.size(0));
  const at::Tensor last = x_SJ.narrow(0, x_SJ.size(0) - own, own);
  if (own == size || !before_PJ.defined()) return last;
  const int64_t more = std::min(size - own, before_PJ.size(0));
  return at::cat(
      {before_PJ.narrow(0, before_PJ.size(0) - more, more).to(x_SJ.scalar_type()), last});
}

at::Tensor over_stretches(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                          const Stretch& stretch) {
  if (!packing.has_forks()) return stretch(inputs_T, packing, {}).out_SNV;
  std::vector<at::Tensor> outputs;
  const auto run = [&](int64_t begin, const std::vector<int64_t>& lengths,
                       const CarriedStates& before) {
    const Packing documents = Packing::from_lengths(lengths);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& x_T : inputs_T) {
      parts.push_back(x_T.narrow(0, begin, documents.num_tokens()));
    }
    StretchResult result = stretch(parts, documents, before);
    outputs.push_back(result.out_SNV);
    return result.after;
  };
  std::vector<int64_t> plain;  // documents without forks that have not run yet
  int64_t begin = 0;
  const auto run_plain = [&](int64_t end) {
    if (!plain.empty()) run(begin, plain, {});
    plain.clear();
    begin = end;
  };
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    const std::vector<TreeSegment>& tree = packing.tree(d);
    if (tree.empty()) {
      plain.push_back(packing.length(d));
      continue;
    }
    run_plain(packing.begin(d));
    std::vector<CarriedStates> after(tree.size());  // of each segment
    for (size_t i = 0; i < tree.size(); ++i) {
      const TreeSegment& segment = tree[i];
      after[i] = run(begin + segment.begin, {segment.end - segment.begin},
                     segment.parent == kNoParent ? CarriedStates() : after[segment.parent]);
      if (segment.subtree_end == segment.end) after[i] = {};  // nothing continues from a leaf
    }
    begin = packing.end(d);
  }
  run_plain(packing.num_tokens());
  return at::cat(outputs);
}

at::Tensor over_remembered(const std::vector<at::Tensor>& inputs_T, const Packing& packing,
                           RecurrentMemory& memory, const Stretch& stretch) {
  TORCH_CHECK(!packing.has_forks(), "remembered states have no forks");
  const c10::NoGradGuard no_grad;
  memory.begin_layer();
  std::vector<at::Tensor> outputs;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& x_T : inputs_T) {
      parts.push_back(x_T.narrow(0, packing.begin(d), packing.length(d)));
    }
    CarriedStates& states = memory.of_document(d);
    StretchResult result = stretch(parts, Packing::single(packing.length(d)), states);
    outputs.push_back(result.out_SNV);
    states = {result.after.window_PJ.clone(), result.after.state_NKV};
  }
  return at::cat(outputs);
}

}  // namespace longspan
