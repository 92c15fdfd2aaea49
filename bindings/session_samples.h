// Samples of Python as examples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/session_pictures.h"
#include "longspan/rows/example.h"

namespace longspan {

/// Samples in the order of their examples.
struct GivenSamples {
  const std::vector<at::Tensor>& ids;        // of each sample: int64 [tokens]
  const std::vector<at::Tensor>& labels;     // the same shapes
  const std::vector<int64_t>& documents;     // number of samples of each example
  const std::vector<int64_t>& desirable;     // of each example
  const std::vector<std::string>& names;     // of columns
  const std::vector<at::Tensor>& columns;    // of each sample, in the order of `names`
  const std::vector<std::string>& files;     // of pictures; empty: in memory
  const std::vector<at::Tensor>& pixels;     // of each picture (GivenPicture)
  const std::vector<int64_t>& grids;         // of each picture, 3 numbers
  const std::vector<int64_t>& num_pictures;  // of each sample
};

/// Returns the examples. `pictures`: null in a session of rows without pictures. `held`: gets the
/// pictures in memory, and must exist as long as the examples' rows. Throws UserError
/// for shapes that do not fit, for ids that do not fit int32, and for pictures that cannot be read.
std::vector<Example> examples_of_python(const GivenSamples& given, const SessionPictures* pictures,
                                        std::vector<HeldPixels>& held);

/// Returns the ids of an int64 tensor [tokens]. `what`: for errors. Throws UserError.
std::vector<int32_t> ids_of(const at::Tensor& tensor, const std::string& what);

}  // namespace longspan
