#include "longspan/train/row.h"

namespace longspan {

Batch collate_rows(const std::vector<Sample>& samples, const std::vector<int64_t>& indices) {
  std::vector<const Sample*> chosen;
  chosen.reserve(indices.size());
  for (int64_t index : indices) chosen.push_back(&samples[index]);
  return collate(chosen);
}

Batch local_share(const Batch& row, const SequenceParallel& attention, at::Device device) {
  Batch local = shard(row, attention.token_order(row.packing));
  local.tokens_T = local.tokens_T.to(device);
  local.labels_T = local.labels_T.to(device);
  local.positions_T = local.positions_T.to(device);
  local.documents_T = local.documents_T.to(device);
  return local;
}

}  // namespace longspan
