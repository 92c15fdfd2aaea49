#include "longspan/rows/padding.h"

#include <vector>

namespace longspan {

Packing pad_tail(const Packing& packing, int64_t multiple) {
  const int64_t padding = round_up(packing.num_tokens(), multiple) - packing.num_tokens();
  if (padding == 0) return packing;
  std::vector<Document> documents = packing.documents();
  documents.push_back({padding});
  return Packing::from_documents(documents);
}

Packing pad_documents(const Packing& packing, int64_t multiple) {
  std::vector<Document> documents = packing.documents();
  for (Document& document : documents) document.length = round_up(document.length, multiple);
  return Packing::from_documents(documents);
}

}  // namespace longspan
