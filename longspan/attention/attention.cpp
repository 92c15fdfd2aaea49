#include "longspan/attention/attention.h"

#include <numeric>
#include <stdexcept>

#include "longspan/attention/latent_keys.h"

namespace longspan {

at::Tensor Attention::attend_latent(const at::Tensor& q_TNH, const at::Tensor& x_TJ,
                                    const std::shared_ptr<const LatentKeys>& keys,
                                    const AttentionSpec& spec, const Packing& packing,
                                    AttentionCheckpoint checkpoint) {
  const LatentKeys::Heads heads = expanded(x_TJ, keys);
  return attend({q_TNH, heads.k_SMH, heads.v_SMH}, spec, packing, checkpoint);
}

at::Tensor Attention::project_and_attend(const AttentionProjections& projections,
                                         const AttentionSpec& spec, const Packing& packing,
                                         AttentionCheckpoint checkpoint) {
  const at::Tensor q_TNH = projections.query(), k_TMH = projections.key();
  const at::Tensor out_TNH =
      attend({q_TNH, k_TMH, projections.value(), projections.sinks_N}, spec, packing, checkpoint);
  std::vector<int64_t> heads(out_TNH.size(1));
  std::iota(heads.begin(), heads.end(), int64_t{0});
  return projections.add_output(projections.begin_output(), out_TNH, heads);
}

std::shared_ptr<const WholeRow> Attention::whole_row(const Packing& /*packing*/) const {
  throw std::logic_error("this attention does not say where the tokens of a row are");
}

}  // namespace longspan
