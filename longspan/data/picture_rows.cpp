#include "longspan/data/picture_rows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/files/checksum.h"
#include "longspan/files/file_state.h"
#include "longspan/input/input_file.h"
#include "longspan/pictures/frame_reader.h"
#include "longspan/pictures/raster.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

constexpr int64_t kMostFileBytes = int64_t{1} << 30;
constexpr size_t kShownName = 120;

int64_t features_per_patch(const Picture& picture) { return picture.num_features / picture.grid.t; }

/// Returns the time of each of `num_patches` temporal patches, in seconds: the mean of its first
/// and last frame's.
std::vector<double> times_of_patches(const std::vector<double>& times, int64_t num_patches,
                                     int64_t frames_per_patch) {
  std::vector<double> means;
  for (int64_t i = 0; i < num_patches; ++i) {
    const int64_t first = i * frames_per_patch;
    const int64_t last = std::min(first + frames_per_patch, std::ssize(times)) - 1;
    means.push_back((times[first] + times[last]) / 2);
  }
  return means;
}

int64_t padded(int64_t num_frames, int64_t frames_per_patch) {
  return (num_frames + frames_per_patch - 1) / frames_per_patch * frames_per_patch;
}

std::string name_of(const Picture& picture, size_t number) {
  return fmt::format("{} {} ({}, {})", picture.is_video ? "video" : "picture", number + 1,
                     shortened(picture.files.front(), kShownName),
                     counted(picture.num_features, "token"));
}

}  // namespace

PictureRows::ReadFile PictureRows::read(const std::string& path, const std::string& source) const {
  const std::string key = file_state(path);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = files_.find(key); found != files_.end()) return found->second;
  }
  try {
    const std::string bytes = InputFile(path, "picture").read_all(kMostFileBytes);
    Xxh64 hash;
    hash.add(bytes.data(), bytes.size());
    // Decoded, so that a picture that is broken after its header is found before training.
    const ReadFile file{decode_picture(bytes, path).size, hash.value()};
    const std::scoped_lock lock(mutex_);
    return files_.emplace(key, file).first->second;
  } catch (const UserError& error) {
    throw RowError(fmt::format("{}: {}", source, error.what()));
  }
}

Picture PictureRows::look_at(MessagePicture& given, const std::string& source) const {
  const ReadFile file = read(given.files.front(), source);
  Picture picture{.files = given.files, .grid = {}, .checksum = file.checksum};
  picture.grid = grid_of(limited_size(file.size, encoding_.limits), encoding_.processor);
  picture.num_features = num_features(picture.grid, encoding_.processor);
  picture.is_two_way = encoding_.two_way;
  given.text = encoding_.text_of(/*is_video=*/false);
  given.printed = encoding_.printed_of(/*is_video=*/false);
  return picture;
}

Picture PictureRows::look_at_frames(MessagePicture& video, const std::string& source) const {
  const auto num_frames = std::ssize(video.files);
  Picture picture{.files = video.files, .is_video = true, .grid = {}};
  picture.files.resize(padded(num_frames, encoding_.video_processor.temporal_patch_size),
                       video.files.back());
  std::optional<PictureSize> size;
  Xxh64 hash;
  for (const std::string& path : picture.files) {
    const ReadFile file = read(path, source);
    hash.add(&file.checksum, sizeof(file.checksum));
    picture.file_checksums.push_back(file.checksum);
    const PictureSize own = limited_size(file.size, encoding_.video_limits);
    if (size && own != *size) {
      throw RowError(fmt::format(
          "{}: {} has {} x {} pixels, and the frames before it {} x {} (after "
          "video_max_pixels and video_min_pixels). Give the frames of a video one size.",
          source, shortened(path, kShownName), own.width, own.height, size->width, size->height));
    }
    size = own;
  }
  picture.checksum = hash.value();
  std::vector<double> times;
  for (int64_t i = 0; i < num_frames; ++i) {
    times.push_back(static_cast<double>(i) / encoding_.video_sampling.fps);
  }
  measure(picture, *size, times, video);
  return picture;
}

PictureRows::ReadVideo PictureRows::read_video(const std::string& path,
                                               const std::string& source) const {
  const std::string key = file_state(path);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = read_videos_.find(key); found != read_videos_.end()) {
      return found->second;
    }
  }
  try {
    ReadVideo video{.sample = {}, .checksum = 0, .version = VideoFile(path).version()};
    video.sample = sample_video(path, encoding_.video_sampling);
    if (encoding_.decodes_videos) require_frames(path, video.version, video.sample.frames);
    video.checksum = checksum_of_file(path).xxh64;
    const std::scoped_lock lock(mutex_);
    return read_videos_.emplace(key, std::move(video)).first->second;
  } catch (const NoVideoDecoder&) {
    throw;  // No fault of the row.
  } catch (const UserError& error) {
    throw RowError(fmt::format("{}: {}", source, error.what()));
  }
}

Picture PictureRows::look_at_video(MessagePicture& video, const std::string& source,
                                   double& fps) const {
  const ReadVideo file = read_video(video.files.front(), source);
  Picture picture{.files = video.files, .is_video = true, .frames = file.sample.frames, .grid = {}};
  picture.version = file.version;
  picture.frames.resize(
      padded(std::ssize(picture.frames), encoding_.video_processor.temporal_patch_size),
      picture.frames.back());
  Xxh64 hash;
  hash.add(&file.checksum, sizeof(file.checksum));
  hash.add(picture.frames.data(), picture.frames.size() * sizeof(int64_t));
  picture.checksum = hash.value();
  fps = file.sample.fps;
  measure(picture, limited_size(file.sample.size, encoding_.video_limits), file.sample.times,
          video);
  return picture;
}

void PictureRows::measure(Picture& picture, PictureSize size, const std::vector<double>& times,
                          MessagePicture& video) const {
  const VideoProcessor& processor = encoding_.video_processor;
  const bool in_one_file = !picture.frames.empty();
  picture.grid = video_grid_of(in_one_file ? std::ssize(picture.frames) : std::ssize(picture.files),
                               size, processor);
  picture.num_features = picture.grid.num_patches() / (processor.merge_size * processor.merge_size);
  const std::string text = encoding_.text_of(/*is_video=*/true);
  video.printed = encoding_.printed_of(/*is_video=*/true);
  if (videos_ == VideoForm::kWhole) {
    video.text = text;
    return;
  }
  for (const double time : times_of_patches(times, picture.grid.t, processor.temporal_patch_size)) {
    video.text += fmt::format("<{:.1f} seconds>{}", time, text);
  }
}

void PictureRows::require_no_own_tokens(const Message& message, const std::string& source) const {
  std::vector<const PictureToken*> tokens{&encoding_.image};
  if (encoding_.video) tokens.push_back(&*encoding_.video);
  if (encoding_.prints_begin) tokens.push_back(&encoding_.begin);
  for (const PictureToken* token : tokens) {
    if (message.content.find(token->text) == std::string::npos &&
        message.thoughts.find(token->text) == std::string::npos) {
      continue;
    }
    throw RowError(
        fmt::format("{}: a message's text has {}, the token that stands for pictures. Write {} or "
                    "{}, and list the files in the columns images or videos.",
                    source, token->text, kImageTag, kVideoTag));
  }
  if (tags_in(message.thoughts).empty()) return;
  throw RowError(
      fmt::format("{}: the thoughts of an answer have the tag {} or {}; pictures belong to the "
                  "text of messages",
                  source, kImageTag, kVideoTag));
}

Conversation PictureRows::prepared(const Conversation& conversation, PlacedPictures& row) const {
  Conversation result = conversation;
  const std::string& source = conversation.source;
  int64_t num_features = 0;
  for (Message& message : result.messages) {
    require_no_own_tokens(message, source);
    if (message.role == Role::kSystem) continue;
    const std::vector<TagPlace> tags = tags_in(message.content);
    if (plain_tags_ && message.pictures.empty()) continue;
    if (tags.size() != message.pictures.size()) {
      throw RowError(
          fmt::format("{}: a message has the tag {} or {}, and no file for it. List the files in "
                      "the columns images or videos of dataset_info.json, or change the text.",
                      source, kImageTag, kVideoTag));
    }
    for (MessagePicture& given : message.pictures) {
      if (given.is_video && !encoding_.video) {
        throw RowError(fmt::format(
            "{}: the row has a video, and the model takes none. Remove the row, or give "
            "frames of the video as pictures.",
            source));
      }
      double fps = given.is_video ? encoding_.video_sampling.fps : 0;
      try {
        row.pictures.push_back(given.in_one_file ? look_at_video(given, source, fps)
                               : given.is_video  ? look_at_frames(given, source)
                                                 : look_at(given, source));
      } catch (const RowError&) {
        throw;
      } catch (const NoVideoDecoder&) {
        throw;
      } catch (const UserError& error) {
        throw RowError(fmt::format("{}: {}: {}", source, given.files.front(), error.what()));
      }
      row.fps.push_back(fps);
      Picture& picture = row.pictures.back();
      picture.record.text = source;
      const bool by_frame = given.is_video && videos_ == VideoForm::kFrames;
      const int64_t num_runs = by_frame ? picture.grid.t : 1;
      for (int64_t i = 0; i < num_runs; ++i) {
        const int64_t num_tokens = picture.num_features / num_runs;
        row.runs.push_back({row.pictures.size() - 1, num_features, num_tokens});
        num_features += num_tokens;
      }
    }
    if (!writes_tags_) continue;
    for (size_t i = tags.size(); i-- > 0;) {
      message.content.replace(tags[i].begin, tags[i].size, message.pictures[i].text);
    }
    message.pictures.clear();
  }
  return result;
}

namespace {

/// Repeats the tokens that stand for pictures.
class Expansion {
 public:
  Expansion(const PictureEncoding& encoding, const PlacedPictures& row, const std::string& source)
      : encoding_(encoding), row_(row), source_(source) {}

  /// `labels`: of the tokens, or nullptr.
  void apply(std::vector<int32_t>& ids, std::vector<int64_t>& features,
             std::vector<int32_t>* labels) {
    std::vector<int32_t> longer, longer_labels;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool is_video = encoding_.video && ids[i] == encoding_.video->id;
      const bool stands = is_video || ids[i] == encoding_.image.id;
      const int64_t count = stands ? next(is_video).num_tokens : 1;
      longer.insert(longer.end(), count, ids[i]);
      if (labels != nullptr) longer_labels.insert(longer_labels.end(), count, (*labels)[i]);
      for (int64_t k = 0; k < count; ++k) {
        features.push_back(stands ? row_.runs[used_ - 1].first_feature + k : -1);
      }
    }
    ids = std::move(longer);
    if (labels != nullptr) *labels = std::move(longer_labels);
  }

  /// Call after the last turn.
  void require_all() const {
    if (used_ != row_.runs.size()) fail();
  }

 private:
  const PlacedPictures::Run& next(bool is_video) {
    if (used_ == row_.runs.size()) fail();
    const PlacedPictures::Run& run = row_.runs[used_++];
    if (row_.pictures[run.picture].is_video != is_video) fail();
    return run;
  }
  [[noreturn]] void fail() const {
    throw RowError(fmt::format(
        "{}: the chat template does not print {} of the row once each and in order. Put a template "
        "that does into chat_template.jinja in the model's folder, or name a `template` for models "
        "that take pictures.",
        source_, counted(std::ssize(row_.pictures), "picture")));
  }

  const PictureEncoding& encoding_;
  const PlacedPictures& row_;
  const std::string& source_;
  size_t used_ = 0;
};

}  // namespace

void PictureRows::expand(std::vector<Turn>& turns, const PlacedPictures& row,
                         const std::string& source) const {
  Expansion expansion(encoding_, row, source);
  for (Turn& turn : turns) {
    expansion.apply(turn.source, turn.source_features, nullptr);
    expansion.apply(turn.target, turn.target_features, &turn.target_labels);
  }
  expansion.require_all();
}

at::Tensor PictureRows::positions_of(const std::vector<int64_t>& features,
                                     const std::vector<Picture>& pictures,
                                     const std::vector<double>& fps) const {
  const auto num_tokens = std::ssize(features);
  at::Tensor positions_AT = at::empty({3, num_tokens}, at::kLong);
  const std::array<int64_t*, 3> axes = {positions_AT[0].mutable_data_ptr<int64_t>(),
                                        positions_AT[1].mutable_data_ptr<int64_t>(),
                                        positions_AT[2].mutable_data_ptr<int64_t>()};
  const auto temporal = static_cast<double>(encoding_.video_processor.temporal_patch_size);
  int64_t position = 0;  // of the next text, and of the picture that begins
  auto picture = pictures.begin();
  int64_t within = 0;  // features of the picture before the token
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (features[token] < 0) {
      for (int64_t* const axis : axes) axis[token] = position;
      ++position;
      continue;
    }
    const int64_t merge =
        picture->is_video ? encoding_.video_processor.merge_size : encoding_.processor.merge_size;
    const int64_t columns = picture->grid.w / merge, of_patch = features_per_patch(*picture);
    const bool by_frame = picture->is_video && encoding_.positions == PicturePositions::kFrames;
    const int64_t patch = within / of_patch, place = within % of_patch;
    int64_t time = by_frame ? 0 : patch;
    if (picture->is_video && encoding_.positions == PicturePositions::kSeconds) {
      const double seconds = temporal / fps[picture - pictures.begin()];
      const auto step = static_cast<float>(encoding_.tokens_per_second * seconds);
      time = static_cast<int64_t>(static_cast<float>(patch) * step);  // in fp32, as transformers
    }
    axes[0][token] = position + time;
    axes[1][token] = position + place / columns;
    axes[2][token] = position + place % columns;
    ++within;
    const bool ends = within == picture->num_features;
    if (ends || (by_frame && within % of_patch == 0)) {
      position += std::max(picture->grid.h, picture->grid.w) / merge;
    }
    if (!ends) continue;
    ++picture;
    within = 0;
  }
  return positions_AT;
}

void PictureRows::attach(Sample& sample, const PlacedPictures& row, int64_t cutoff_len,
                         const std::string& source) const {
  const auto num_tokens = std::ssize(sample.input_ids);
  Column& column = sample.columns[kFeatureColumn];
  column.padding = -1;
  if (!column.values.defined()) {
    column.values = at::full({num_tokens}, -1, at::kLong);
    return;
  }
  int64_t* const feature = column.values.mutable_data_ptr<int64_t>();
  // The features of a picture follow each other, so its first and last kept ones count them.
  int64_t first = 0, dropped = 0, token = 0;
  std::vector<double> fps;  // of the pictures that stay
  for (size_t i = 0; i < row.pictures.size(); ++i) {
    const Picture& picture = row.pictures[i];
    const int64_t end = first + picture.num_features;
    int64_t kept = 0;
    while (token < num_tokens && feature[token] < end) {
      if (feature[token] >= first) {
        ++kept;
        feature[token] -= dropped;
      }
      ++token;
    }
    if (kept == picture.num_features) {
      sample.pictures.push_back(picture);
      fps.push_back(row.fps[i]);
    } else if (kept == 0) {
      dropped += picture.num_features;
    } else {
      throw RowError(fmt::format(
          "{}: cutoff_len {} cuts {}: {} of its tokens stay. Raise cutoff_len, or make pictures "
          "smaller by {}.",
          source, cutoff_len, name_of(picture, i), kept,
          picture.is_video ? "video_max_pixels or fewer frames" : "image_max_pixels"));
    }
    first = end;
  }
  if (sample.pictures.empty() || encoding_.positions == PicturePositions::kCounted) return;
  sample.positions_AT = positions_of({feature, feature + num_tokens}, sample.pictures, fps);
}

}  // namespace longspan
