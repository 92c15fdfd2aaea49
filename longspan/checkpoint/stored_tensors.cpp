#include "longspan/checkpoint/stored_tensors.h"

#include <ATen/ATen.h>

#include <vector>

#include "longspan/checkpoint/fp8_blocks.h"
#include "longspan/checkpoint/grouped_codes.h"
#include "longspan/checkpoint/mxfp4.h"
#include "longspan/kernels/grouped_bits.h"

namespace longspan {
namespace {

/// Reads numbers of the tensor from `begin` on into the shape, in storage order.
at::Tensor read_numbers(const StoredTensor& stored, int64_t begin, at::IntArrayRef shape,
                        at::ScalarType dtype) {
  at::Tensor run = at::empty(shape, at::TensorOptions(dtype));
  stored.file->read_run(*stored.entry, begin, begin + run.numel(), run.view({-1}));
  return run;
}

/// Returns rows [begin, end) of a matrix [num_out, num_in].
at::Tensor read_rows_of_mxfp4(const StoredParameter& stored, int64_t begin, int64_t end) {
  const ParameterSpec& spec = stored.spec;
  const int64_t num_out = spec.shape.at(0), num_in = spec.shape.at(1);
  const int64_t first = spec.stored_part->begin * num_out + begin;
  const auto read_one = [&](const StoredTensor& tensor, std::vector<int64_t> shape) {
    shape.erase(shape.begin());
    const int64_t row = c10::multiply_integers(shape) / (end - begin);
    return read_numbers(tensor, first * row, shape, at::kByte);
  };
  const at::Tensor blocks = read_one(stored.numbers, mxfp4_blocks_shape(1, end - begin, num_in));
  const at::Tensor scales = read_one(stored.scales, mxfp4_scales_shape(1, end - begin, num_in));
  return read_mxfp4(blocks, scales).view({end - begin, num_in});
}

/// Returns rows of one of the matrices, which are stored as transposes.
at::Tensor read_turned_rows(const StoredParameter& stored, at::ScalarType dtype) {
  const StoredPart& part = *stored.spec.stored_part;
  const int64_t num_rows = part.num_rows / part.num_matrices, columns = stored.spec.shape.at(1);
  const int64_t matrix = part.begin / num_rows;
  return read_numbers(stored.numbers, matrix * num_rows * columns, {columns, num_rows}, dtype)
      .narrow(1, part.begin % num_rows, stored.spec.shape.at(0))
      .t()
      .contiguous();
}

/// Returns rows [begin, end) of the matrix. `begin` is the first row of a block.
at::Tensor read_rows_of_fp8(const StoredParameter& stored, int64_t begin, int64_t end) {
  const int64_t num_columns = stored.spec.shape.at(1), block = stored.stored.block_rows;
  at::Tensor rows =
      read_numbers(stored.numbers, begin * num_columns, {end - begin, num_columns}, at::kFloat);
  const at::Tensor scales = stored.scales.file->read(*stored.scales.entry, at::kFloat);
  scale_fp8_(rows, scales.slice(0, begin / block, (end - 1) / block + 1), block,
             stored.stored.block_columns);
  return rows;
}

/// Returns the parameter's rows of the matrix.
at::Tensor read_rows_of_codes(const StoredParameter& stored, at::ScalarType dtype) {
  const at::Tensor packed = stored.read_packed(),
                   matrix = at::empty(stored_shape(stored.spec), at::kFloat);
  unpack_grouped_bits_out(matrix, stored.stored.packed.format, packed);
  const int64_t num_rows = stored.spec.shape.at(0);
  return matrix.narrow(0, stored.begin / matrix.size(1), num_rows).to(dtype).contiguous();
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
      return read_rows_of_mxfp4(*this, 0, spec.shape.at(0)).to(dtype);
    case StoredNumbers::Format::kFp8:
      return read_rows_of_fp8(*this, 0, spec.shape.at(0)).to(dtype);
    case StoredNumbers::Format::kGrouped:
      return read_rows_of_codes(*this, dtype);
  }
  if (turned) return read_turned_rows(*this, dtype);
  if (is_turned(spec)) {
    const std::vector<int64_t> shape(spec.shape.rbegin(), spec.shape.rend());
    return read_numbers(numbers, begin, shape, dtype).t().contiguous();
  }
  const bool is_whole = c10::multiply_integers(numbers.entry->shape) == spec.num_elements();
  return is_whole ? numbers.file->read(*numbers.entry, dtype).view(spec.shape)
                  : read_numbers(numbers, begin, spec.shape, dtype);
}

bool StoredParameter::holds_runs() const {
  switch (stored.format) {
    case StoredNumbers::Format::kPlain:
      return !turned && !is_turned(spec);
    case StoredNumbers::Format::kMxfp4:
    case StoredNumbers::Format::kFp8:
      return true;
    case StoredNumbers::Format::kGrouped:
      break;
  }
  return false;
}

at::Tensor StoredParameter::read_run(int64_t first, int64_t end, at::ScalarType dtype) const {
  TORCH_INTERNAL_ASSERT(holds_runs());
  if (stored.format == StoredNumbers::Format::kPlain) {
    return read_numbers(numbers, begin + first, {end - first}, dtype);
  }
  if (first == end) return at::empty({0}, dtype);
  const bool fp8 = stored.format == StoredNumbers::Format::kFp8;
  const int64_t num_columns = spec.shape.at(1), block = fp8 ? stored.block_rows : 1;
  const int64_t begin_row = first / num_columns / block * block,
                end_row = (end - 1) / num_columns + 1;
  const at::Tensor rows = fp8 ? read_rows_of_fp8(*this, begin_row, end_row)
                              : read_rows_of_mxfp4(*this, begin_row, end_row);
  const int64_t skipped = begin_row * num_columns;
  return rows.view({-1}).slice(0, first - skipped, end - skipped).to(dtype).contiguous();
}

at::Tensor StoredParameter::read_packed() const {
  const auto tensor = [](const StoredTensor& of, at::ScalarType dtype) {
    return of.entry == nullptr ? at::Tensor() : of.file->read(*of.entry, dtype);
  };
  const std::vector<int64_t> shape = stored_shape(spec);
  return pack_codes(stored, shape.at(0), shape.at(1),
                    {.name = numbers.file->path() + ": " + spec.stored_as,
                     .codes = tensor(numbers, at::kInt),
                     .zeros = tensor(zeros, at::kInt),
                     .scales = tensor(scales, at::kFloat),
                     .groups = tensor(groups, at::kInt)});
}

at::Tensor as_stored(const ParameterSpec& spec, const at::Tensor& parameter) {
  if (!spec.stored_part || !spec.stored_part->stacked) return parameter;
  return (is_turned(spec) ? parameter.t() : parameter).unsqueeze(0);
}

}  // namespace longspan
