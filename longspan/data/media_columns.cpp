#include "longspan/data/media_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kShownPath = 200;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Returns the path of a file, or folder of a video's frames, that a row names.
std::string media_path(std::string given, const std::string& media_dir, const std::string& place,
                       bool may_be_folder) {
  constexpr std::string_view kLocal = "file://";
  if (given.starts_with(kLocal)) given.erase(0, kLocal.size());
  if (given.starts_with("data:")) {
    throw RowError(
        fmt::format("{}: a picture is given as data (base64). Pictures are read from files: write "
                    "it into one, and give its path.",
                    place));
  }
  if (given.find("://") != std::string::npos) {
    throw RowError(
        fmt::format("{}: {} is an address. Nothing is fetched: download the file before, and give "
                    "its path.",
                    place, shortened(given, kShownPath)));
  }
  const auto is_there = [&](const fs::path& path) {
    std::error_code error;
    return is_file(path) || (may_be_folder && fs::is_directory(path, error));
  };
  const fs::path inside = fs::path(media_dir) / given;  // an absolute path stays
  if (!given.empty() && is_there(inside)) return inside.string();
  if (!given.empty() && is_there(given)) return given;
  throw RowError(
      fmt::format("{}: there is no file {}. Paths begin at the folder of media_dir (default: "
                  "dataset_dir).",
                  place, shortened(inside.string(), kShownPath)));
}

std::vector<std::string> texts_in(const ordered_json& list, const std::string& place) {
  std::vector<std::string> texts;
  for (const ordered_json& item : list) {
    if (!item.is_string()) {
      throw RowError(fmt::format(
          "{}: {} is no path; wanted is text", place,
          shortened(item.dump(-1, ' ', false, ordered_json::error_handler_t::replace), 60)));
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

/// Returns a video that is a file, or the files of a folder in the order of their names.
MessagePicture video_at(const std::string& path, const std::string& place) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return {.is_video = true, .files = {path}, .in_one_file = true};
  }
  MessagePicture video{.is_video = true};
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (is_file(entry.path())) video.files.push_back(entry.path().string());
  }
  if (video.files.empty()) {
    throw RowError(fmt::format("{}: the folder {} has no files; wanted are the frames of a video",
                               place, shortened(path, kShownPath)));
  }
  std::ranges::sort(video.files);
  return video;
}

MessagePicture video_of(const ordered_json& value, const std::string& place) {
  if (value.is_string()) {
    return {.is_video = true, .files = {value.get<std::string>()}, .in_one_file = true};
  }
  if (!value.is_array() || value.empty()) {
    throw RowError(fmt::format("{}: a video is a file or a list of the files of its frames, not {}",
                               place, value.is_array() ? "an empty list" : value.type_name()));
  }
  return {.is_video = true, .files = texts_in(value, place)};
}

/// Reads a column: one picture or video, or a list of them; null and a missing column are none.
std::vector<MessagePicture> read_column(const ordered_json& row,
                                        const std::optional<std::string>& column, bool is_video,
                                        const std::string& source) {
  if (!column) return {};
  const auto value = row.find(*column);
  if (value == row.end() || value->is_null()) return {};
  const std::string place = fmt::format("{}: {}", source, *column);
  std::vector<MessagePicture> files;
  if (is_video) {
    if (value->is_string()) return {video_of(*value, place)};
    if (!value->is_array()) {
      throw RowError(
          fmt::format("{} is {}; wanted is a list of videos, each a file or a list of its frames",
                      place, value->type_name()));
    }
    for (const ordered_json& video : *value) files.push_back(video_of(video, place));
    return files;
  }
  if (!value->is_string() && !value->is_array()) {
    throw RowError(
        fmt::format("{} is {}; wanted is a path or a list of paths", place, value->type_name()));
  }
  const ordered_json list = value->is_string() ? ordered_json::array({*value}) : *value;
  for (std::string& path : texts_in(list, place)) files.push_back({.files = {std::move(path)}});
  return files;
}

/// Gives tags their files, in order.
class Placing {
 public:
  Placing(const DatasetEntry& entry, const ordered_json& row, const std::string& source)
      : entry_(entry),
        source_(source),
        images_(read_column(row, entry.columns.images, false, source)),
        videos_(read_column(row, entry.columns.videos, true, source)) {}

  void place(Message& message) {
    if (message.pictures.empty()) {
      for (const TagPlace& tag : tags_in(message.content)) {
        if (message.role == Role::kSystem) {
          throw RowError(
              fmt::format("{}: the system message has the tag {}; pictures belong to the messages "
                          "after it",
                          source_, tag.is_video ? kVideoTag : kImageTag));
        }
        message.pictures.push_back({.is_video = tag.is_video});
      }
    }
    for (MessagePicture& picture : message.pictures) {
      int64_t& number = picture.is_video ? num_videos_ : num_images_;
      const std::vector<MessagePicture>& files = picture.is_video ? videos_ : images_;
      if (picture.files.empty()) {
        if (number < std::ssize(files)) picture = files[number];
        ++number;
      }
      for (std::string& file : picture.files) {
        file = media_path(file, entry_.media_dir, source_, /*may_be_folder=*/picture.in_one_file);
      }
      if (picture.in_one_file) picture = video_at(picture.files.front(), source_);
    }
  }

  /// Call after the last message.
  void require_equal_numbers() const {
    require(num_images_, std::ssize(images_), kImageTag, entry_.columns.images, "images");
    require(num_videos_, std::ssize(videos_), kVideoTag, entry_.columns.videos, "videos");
  }

 private:
  void require(int64_t num_tags, int64_t num_files, std::string_view tag,
               const std::optional<std::string>& column, std::string_view name) const {
    if (num_tags == num_files) return;
    throw RowError(fmt::format(
        "{}: the messages have {} without a file of their own, and {}. Each tag stands for one "
        "file: add or remove tags or files.",
        source_, fmt::format("{} {}", counted(num_tags, "tag"), tag),
        column ? fmt::format("{} names {}", *column, counted(num_files, "file"))
               : fmt::format("columns lists no {} in {}", name, entry_.info_file)));
  }

  const DatasetEntry& entry_;
  std::string source_;
  std::vector<MessagePicture> images_, videos_;
  int64_t num_images_ = 0, num_videos_ = 0;
};

}  // namespace

void place_pictures(const DatasetEntry& entry, const ordered_json& row,
                    Conversation& conversation) {
  std::vector<Message>& messages = conversation.messages;
  const bool lists = entry.columns.images || entry.columns.videos;
  if (!lists && !has_pictures(conversation)) return;
  Placing placing(entry, row, conversation.source);
  for (Message& message : messages) {
    if (conversation.rejected && &message == &messages.back()) {
      Placing other = placing;
      other.place(*conversation.rejected);
      other.require_equal_numbers();
    }
    placing.place(message);
  }
  placing.require_equal_numbers();
}

MessagePicture picture_of_part(const ordered_json& part, const std::string& type,
                               const std::string& place) {
  const bool is_video = type == "video";
  for (const std::string& key : {type, std::string("path"), std::string("url")}) {
    const auto value = part.find(key);
    if (value == part.end() || value->is_null()) continue;
    const bool inside = value->is_object() && value->contains("url");
    const ordered_json& file = inside ? value->at("url") : *value;
    if (is_video) return video_of(file, place);
    if (file.is_string()) return {.files = {file.get<std::string>()}};
    throw RowError(fmt::format("{}: {} is no path; wanted is text", place, key));
  }
  return {.is_video = is_video};  // its file is in a column
}

}  // namespace longspan
