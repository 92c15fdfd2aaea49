#include "longspan/text/similarity.h"

#include <array>

#include "longspan/text/rust_call.h"

namespace longspan {

Similarity similarity(std::string_view answer, std::string_view reference) {
  std::array<double, 4> scores{};
  rust_call(lsr_similarity, rust_view(answer), rust_view(reference), scores.data());
  return {scores[0], scores[1], scores[2], scores[3]};
}

}  // namespace longspan
