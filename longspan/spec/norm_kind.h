// The factor of an RMSNorm (arXiv 1910.07467), as data. No torch.
#pragma once

namespace longspan {

enum class NormKind {
  kWeight,         ///< its weight, initialized to ones
  kOnePlusWeight,  ///< 1 + its weight, initialized to zeros
};

}  // namespace longspan
