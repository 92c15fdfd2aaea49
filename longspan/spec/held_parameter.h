// Parameters that a process holds, as sizes without values. No torch.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/spec/packed_format.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

struct HeldParameter {
  ParameterSpec spec;
  int64_t element_bytes = 4;  ///< at use: 4 for fp32, 2 for bf16
  bool trained = false;
  std::optional<PackedFormat> packed = {};  ///< the format between uses; none: as at use

  int64_t used_bytes() const { return spec.num_elements() * element_bytes; }
  /// Bytes between uses.
  int64_t num_bytes() const {
    return packed ? packed_bytes(*packed, spec.shape.at(0), spec.shape.at(1)) : used_bytes();
  }
  bool operator==(const HeldParameter&) const = default;
};

/// Bytes on one rank.
struct HeldBytes {
  int64_t device = 0, host = 0;

  bool operator==(const HeldBytes&) const = default;
};

}  // namespace longspan
