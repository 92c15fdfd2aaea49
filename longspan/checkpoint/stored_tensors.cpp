#include "longspan/checkpoint/stored_tensors.h"

#include <ATen/ATen.h>

#include <vector>

#include "longspan/checkpoint/fp8_blocks.h"
#include "longspan/checkpoint/mxfp4.h"

namespace longspan {
namespace {

/// Reads numbers of the tensor from `begin` on into the shape, in storage order.
at::Tensor read_run(const StoredTensor& stored, int64_t begin, at::IntArrayRef shape,
                    at::ScalarType dtype) {
  at::Tensor run = at::empty(shape, at::TensorOptions(dtype));
  stored.file->read_run(*stored.entry, begin, begin + run.numel(), run.view({-1}));
  return run;
}

/// Returns a matrix [num_out, num_in].
at::Tensor read_matrix_of_mxfp4(const StoredParameter& stored, at::ScalarType dtype) {
  const ParameterSpec& spec = stored.spec;
  const int64_t expert = spec.stored_part->begin, num_out = spec.shape.at(0);
  const auto read_one = [&](const StoredTensor& tensor, std::vector<int64_t> shape) {
    shape.erase(shape.begin());
    return read_run(tensor, expert * c10::multiply_integers(shape), shape, at::kByte);
  };
  const at::Tensor blocks =
      read_one(stored.numbers, mxfp4_blocks_shape(1, num_out, spec.shape.at(1)));
  const at::Tensor scales =
      read_one(stored.scales, mxfp4_scales_shape(1, num_out, spec.shape.at(1)));
  return read_mxfp4(blocks, scales).view(spec.shape).to(dtype);
}

/// Returns rows of one of the matrices, which are stored as transposes.
at::Tensor read_turned_rows(const StoredParameter& stored, at::ScalarType dtype) {
  const StoredPart& part = *stored.spec.stored_part;
  const int64_t num_rows = part.num_rows / part.num_matrices, columns = stored.spec.shape.at(1);
  const int64_t matrix = part.begin / num_rows;
  return read_run(stored.numbers, matrix * num_rows * columns, {columns, num_rows}, dtype)
      .narrow(1, part.begin % num_rows, stored.spec.shape.at(0))
      .t()
      .contiguous();
}

/// Returns the whole matrix.
at::Tensor read_matrix_of_fp8(const StoredParameter& stored, at::ScalarType dtype) {
  at::Tensor matrix = stored.numbers.file->read(*stored.numbers.entry, at::kFloat);
  scale_fp8_(matrix, stored.scales.file->read(*stored.scales.entry, at::kFloat),
             stored.stored.block_rows, stored.stored.block_columns);
  return matrix.to(dtype);
}

}  // namespace

int64_t begin_in_stored(const ParameterSpec& spec) {
  if (!spec.stored_part) return 0;
  const int64_t num_elements = spec.num_elements();
  return spec.stored_part->begin *
         (spec.stored_part->stacked ? num_elements : num_elements / spec.shape.at(0));
}

bool is_turned(const ParameterSpec& spec) {
  return spec.stored_part && spec.stored_part->stacked && spec.shape.size() == 2;
}

at::Tensor StoredParameter::read(at::ScalarType dtype) const {
  switch (stored.format) {
    case StoredNumbers::Format::kPlain:
      break;
    case StoredNumbers::Format::kMxfp4:
      return read_matrix_of_mxfp4(*this, dtype);
    case StoredNumbers::Format::kFp8:
      return read_matrix_of_fp8(*this, dtype);
  }
  if (turned) return read_turned_rows(*this, dtype);
  if (is_turned(spec)) {
    const std::vector<int64_t> shape(spec.shape.rbegin(), spec.shape.rend());
    return read_run(numbers, begin, shape, dtype).t().contiguous();
  }
  const bool is_whole = c10::multiply_integers(numbers.entry->shape) == spec.num_elements();
  return is_whole ? numbers.file->read(*numbers.entry, dtype).view(spec.shape)
                  : read_run(numbers, begin, spec.shape, dtype);
}

at::Tensor as_stored(const ParameterSpec& spec, const at::Tensor& parameter) {
  if (!spec.stored_part || !spec.stored_part->stacked) return parameter;
  return (is_turned(spec) ? parameter.t() : parameter).unsqueeze(0);
}

}  // namespace longspan
