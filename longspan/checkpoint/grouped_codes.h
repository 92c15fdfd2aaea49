// Matrices in 4 bits as the files of GPTQ and AWQ hold them (models/grouped_format.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/models/model_config.h"

namespace longspan {

/// The shapes of the tensors of a matrix [num_rows, num_columns]. The numbers of rows and columns
/// are multiples of kCodesOfWord.
struct GroupedShapes {
  std::vector<int64_t> codes, zeros, scales, groups;
};
GroupedShapes grouped_shapes(const StoredNumbers& stored, int64_t num_rows, int64_t num_columns);

/// The tensors of a matrix, of these shapes: int32, and scales in fp32.
struct GroupedTensors {
  std::string name;  ///< for messages
  at::Tensor codes, zeros, scales;
  at::Tensor groups;  ///< undefined: column c is in group c / group_size
};

/// Returns the packed bytes (GroupedLayout). Throws UserError where a group is not of the matrix,
/// or a scale is not finite.
at::Tensor pack_codes(const StoredNumbers& stored, int64_t num_rows, int64_t num_columns,
                      const GroupedTensors& tensors);

}  // namespace longspan
