#include "bindings/session_pictures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/rows/picture.h"
#include "longspan/text/tokenizer.h"
#include "longspan/train/encoded_data.h"

namespace longspan {
namespace {

PictureEncoding encoding_of(const RowSettings& config, const ModelConfig& model) {
  const std::string& folder = config.model.model_name_or_path;
  std::optional<PictureEncoding> encoding =
      picture_encoding(config, model, Tokenizer::load(folder));
  if (!encoding) throw UserError(fmt::format("{}: the model takes no pictures", folder));
  return *std::move(encoding);
}

}  // namespace

SessionPictures::SessionPictures(const RowSettings& config, const ModelConfig& model)
    : encoding_(encoding_of(config, model)),
      rows_(encoding_, encoding_.videos(), /*writes_tags=*/true) {}

void SessionPictures::attach(Sample& sample, const std::vector<std::string>& files,
                             const std::string& name) const {
  const auto count = [&](int32_t id) { return std::ranges::count(sample.input_ids, id); };
  if (encoding_.video && count(encoding_.video->id) > 0) {
    throw UserError(fmt::format("{} has the token {}; a session of Python takes pictures only",
                                name, encoding_.video->text));
  }
  if (sample.columns.contains(kFeatureColumn)) {
    throw UserError(fmt::format("{}: the column {} belongs to pictures; give it another name", name,
                                kFeatureColumn));
  }
  Conversation given{{Message{Role::kUser, ""}}, name, {}};
  for (const std::string& file : files) {
    given.messages[0].content += kImageTag;
    given.messages[0].pictures.emplace_back().files = {file};
  }
  PlacedPictures placed;
  rows_.prepared(given, placed);
  std::vector<int64_t> counts;
  int64_t num_features = 0;
  for (const Picture& picture : placed.pictures) {
    counts.push_back(picture.num_features);
    num_features += picture.num_features;
  }
  if (count(encoding_.image.id) != num_features) {
    throw UserError(fmt::format(
        "{} has {} tokens {}, and its pictures have [{}] features: give each picture one token for "
        "each feature, in the order of the pictures, as the model's processor of transformers "
        "does. The keys image_max_pixels and image_min_pixels limit a picture's size first.",
        name, count(encoding_.image.id), encoding_.image.text, fmt::join(counts, ", ")));
  }
  std::vector<int64_t> features;
  int64_t next = 0, end_of_picture = 0;
  size_t picture = 0;
  for (const int32_t id : sample.input_ids) {
    const bool is_feature = id == encoding_.image.id;
    if (is_feature && next == end_of_picture) end_of_picture += counts[picture++];
    // Two pictures have a token between their features.
    if (!is_feature && next != end_of_picture) {
      throw UserError(fmt::format(
          "{}: the tokens {} of picture {} end after {}, and it has {} features (all pictures: "
          "[{}]). "
          "Give the pictures in the order of their tokens.",
          name, encoding_.image.text, picture, counts[picture - 1] - (end_of_picture - next),
          counts[picture - 1], fmt::join(counts, ", ")));
    }
    features.push_back(is_feature ? next++ : -1);
  }
  sample.columns[kFeatureColumn].values = at::tensor(features, at::kLong);
  rows_.attach(sample, placed, std::ssize(sample.input_ids), name);
}

}  // namespace longspan
