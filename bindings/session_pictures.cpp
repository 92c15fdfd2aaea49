#include "bindings/session_pictures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/files/checksum.h"
#include "longspan/pictures/picture.h"
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

uint64_t checksum_of(const void* bytes, size_t num_bytes, const PictureSize& size) {
  Xxh64 hash;
  hash.add(&size, sizeof(size));
  hash.add(bytes, num_bytes);
  return hash.value();
}

}  // namespace

HeldPixels PicturesInMemory::hold(const std::string& name, std::function<at::Tensor()> patches) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(pixels_, [](const auto& entry) { return entry.second.expired(); });
  auto& known = pixels_[name];
  HeldPixels held = known.lock();
  if (!held) known = held = std::make_shared<const std::function<at::Tensor()>>(std::move(patches));
  return held;
}

HeldPixels PicturesInMemory::find(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  const auto found = pixels_.find(name);
  return found == pixels_.end() ? nullptr : found->second.lock();
}

SessionPictures::SessionPictures(const RowSettings& config, const ModelConfig& model)
    : encoding_(encoding_of(config, model)),
      rows_(encoding_, encoding_.videos(), /*writes_tags=*/true) {}

Picture SessionPictures::decoded(const at::Tensor& pixels, const std::string& place,
                                 std::vector<HeldPixels>& held) const {
  if (pixels.scalar_type() != at::kByte || pixels.dim() != 3 || pixels.size(2) != 3 ||
      pixels.numel() == 0) {
    throw UserError(
        fmt::format("{} has shape {} and dtype {}, and must have shape [height, width, 3] and "
                    "dtype uint8: red, green and blue of each pixel",
                    place, pixels.sizes(), c10::toString(pixels.scalar_type())));
  }
  const at::Tensor here = pixels.cpu().contiguous();
  const auto* const bytes = here.const_data_ptr<uint8_t>();
  const auto raster = std::make_shared<const Raster>(
      Raster{.size = {here.size(1), here.size(0)}, .pixels = {bytes, bytes + here.numel()}});
  return in_memory(
      grid_of(limited_size(raster->size, encoding_.limits, place), encoding_.processor, place),
      checksum_of(bytes, here.nbytes(), raster->size),
      [raster, place, processor = encoding_.processor, limits = encoding_.limits] {
        return pixel_values(*raster, place, processor, limits).patches_PX;
      },
      held);
}

Picture SessionPictures::processed(const GivenPicture& given, const std::string& place,
                                   std::vector<HeldPixels>& held) const {
  const PictureProcessor& processor = encoding_.processor;
  const auto& [t, h, w] = given.grid;
  const at::Tensor& pixels = given.pixels;
  if (processor.kind != PictureProcessor::Kind::kQwenPatches) {
    throw UserError(place +
                    " has pixel_values, and this model's processor makes no patches: give "
                    "its files or arrays of pixels as `pictures`");
  }
  const int64_t num_values =
      3 * processor.temporal_patch_size * processor.patch_size * processor.patch_size;
  if (!pixels.is_floating_point() || pixels.dim() != 2 || pixels.size(1) != num_values) {
    throw UserError(fmt::format(
        "{} has pixel_values of shape {} and dtype {}, and this model takes floating-point patches "
        "of {} numbers",
        place, pixels.sizes(), c10::toString(pixels.scalar_type()), num_values));
  }
  if (t != 1 || h < 1 || w < 1 || h % processor.merge_size != 0 || w % processor.merge_size != 0 ||
      h * w != pixels.size(0)) {
    throw UserError(fmt::format(
        "{} has the grid [{}, {}, {}] of image_grid_thw, and {} patches: a picture has 1 temporal "
        "patch, and rows and columns of patches that are multiples of {}",
        place, t, h, w, pixels.size(0), processor.merge_size));
  }
  const at::Tensor patches_PX = pixels.to(at::kCPU, at::kFloat).clone(at::MemoryFormat::Contiguous);
  return in_memory(
      given.grid, checksum_of(patches_PX.const_data_ptr(), patches_PX.nbytes(), {w, h}),
      [patches_PX] { return patches_PX; }, held);
}

Picture SessionPictures::in_memory(const PictureGrid& grid, uint64_t checksum,
                                   std::function<at::Tensor()> patches,
                                   std::vector<HeldPixels>& held) const {
  const std::string name = fmt::format("picture {:016x} in memory", checksum);
  held.push_back(memory_->hold(name, std::move(patches)));
  return {.files = {name},
          .grid = grid,
          .num_features = num_features(grid, encoding_.processor),
          .checksum = checksum,
          .is_two_way = encoding_.two_way};
}

void SessionPictures::attach(Sample& sample, const std::vector<GivenPicture>& pictures,
                             const std::string& name, std::vector<HeldPixels>& held) const {
  const auto count = [&](int32_t id) { return std::ranges::count(sample.input_ids, id); };
  if (encoding_.video && count(encoding_.video->id) > 0) {
    throw UserError(fmt::format("{} has the token {}; a session of Python takes pictures only",
                                name, encoding_.video->text));
  }
  if (sample.columns.contains(kFeatureColumn)) {
    throw UserError(fmt::format("{}: the column {} belongs to pictures; give it another name", name,
                                kFeatureColumn));
  }
  PlacedPictures placed;
  for (const GivenPicture& given : pictures) {
    if (!given.file.empty()) {
      Conversation one{{Message{Role::kUser, std::string(kImageTag)}}, name, {}};
      one.messages[0].pictures.emplace_back().files = {given.file};
      rows_.prepared(one, placed);
      continue;
    }
    const std::string place = fmt::format("{}: picture {}", name, placed.pictures.size());
    placed.pictures.push_back(given.grid == PictureGrid{} ? decoded(given.pixels, place, held)
                                                          : processed(given, place, held));
    placed.fps.push_back(0);
  }
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

FramePatches SessionPictures::patches(FramePatches of_files) const {
  return [memory = memory_, of_files = std::move(of_files)](const Picture& picture, int64_t t) {
    const HeldPixels held = memory->find(picture.files.front());
    return held ? (*held)() : of_files(picture, t);
  };
}

}  // namespace longspan
