#include "bindings/session_samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "longspan/base/user_error.h"

namespace longspan {

std::vector<int32_t> ids_of(const at::Tensor& tensor, const std::string& what) {
  if (tensor.dim() != 1 || tensor.scalar_type() != at::kLong) {
    throw UserError(fmt::format("{} has shape {} and dtype {}, and must be a list of token ids",
                                what, tensor.sizes(), c10::toString(tensor.scalar_type())));
  }
  const at::Tensor here = tensor.cpu().contiguous();
  std::vector<int32_t> ids;
  for (const int64_t id : at::IntArrayRef(here.const_data_ptr<int64_t>(), here.numel())) {
    if (id < std::numeric_limits<int32_t>::min() || id > std::numeric_limits<int32_t>::max()) {
      throw UserError(fmt::format("{} contains {}, which is no token id", what, id));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::vector<Example> examples_of_python(const GivenSamples& given, const SessionPictures* pictures,
                                        std::vector<HeldPixels>& held) {
  std::vector<Example> examples;
  size_t i = 0, next_picture = 0;
  for (size_t number = 0; number < given.documents.size(); ++number) {
    Example& example = examples.emplace_back();
    example.number = static_cast<int64_t>(number);
    example.desirable = given.desirable.at(number) != 0;
    for (int64_t document = 0; document < given.documents[number]; ++document, ++i) {
      const std::string name = fmt::format("sample {} of example {}", document, number);
      Sample& sample = example.documents.emplace_back();
      sample.input_ids = ids_of(given.ids.at(i), name + ": input_ids");
      sample.labels = ids_of(given.labels.at(i), name + ": labels");
      const size_t length = sample.input_ids.size();
      if (length == 0) throw UserError(name + " has no tokens; leave it out");
      if (sample.labels.size() != length) {
        throw UserError(
            fmt::format("{} has {} labels for {} tokens; give one for each token, -100 "
                        "where there is none",
                        name, sample.labels.size(), length));
      }
      for (size_t column = 0; column < given.names.size(); ++column) {
        const at::Tensor& values = given.columns.at(i * given.names.size() + column);
        if (values.dim() < 1 || values.dim() > 2 ||
            values.size(0) != static_cast<int64_t>(length)) {
          throw UserError(fmt::format(
              "{}: column {} has shape {}, and must have {} numbers, or a vector for each token",
              name, given.names[column], values.sizes(), length));
        }
        sample.columns[given.names[column]] = {.values = values.detach().cpu()};
      }
      std::vector<GivenPicture> own;
      for (int64_t picture = 0; picture < given.num_pictures.at(i); ++picture, ++next_picture) {
        const int64_t* const grid = given.grids.data() + 3 * next_picture;
        own.push_back({given.files.at(next_picture),
                       given.pixels.at(next_picture),
                       {grid[0], grid[1], grid[2]}});
      }
      if (pictures != nullptr) {
        pictures->attach(sample, own, name, held);
      } else if (!own.empty()) {
        throw UserError(name + " has pictures; open the session with pictures=True");
      }
    }
  }
  if (examples.empty()) throw UserError("there are no samples; give at least one");
  return examples;
}

}  // namespace longspan
