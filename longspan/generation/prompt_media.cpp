#include "longspan/generation/prompt_media.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "longspan/data/bad_rows.h"
#include "longspan/data/media_columns.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kImages = "images";
constexpr const char* kVideos = "videos";
constexpr size_t kShownPath = 200;

/// A tag with a path in a text.
struct PathTag {
  size_t begin, end;
  bool is_video;
  std::string path;
};

std::optional<PathTag> next_path_tag(const std::string& text, size_t from) {
  std::optional<PathTag> first;
  for (const bool is_video : {false, true}) {
    const std::string_view opening = is_video ? "<video:" : "<image:";
    const size_t begin = text.find(opening, from);
    const size_t end = begin == std::string::npos ? begin : text.find('>', begin);
    if (end == std::string::npos || (first && first->begin < begin)) continue;
    const size_t path = begin + opening.size();
    std::string file = text.substr(path, end - path);
    // Not <image:loc>, a tag of XML.
    if (!fs::path(file).has_extension() && file.find('/') == std::string::npos) continue;
    first = {begin, end + 1, is_video, std::move(file)};
  }
  return first;
}

bool has_files(const nlohmann::ordered_json& row, const char* column) {
  const auto value = row.find(column);
  return value != row.end() && (value->is_string() || value->is_array()) && !value->empty();
}

void require_file(const std::string& path, const std::string& folder, const std::string& place) {
  std::error_code error;
  if (!path.empty() && (fs::exists(fs::path(folder) / path, error) || fs::exists(path, error) ||
                        path.find(':') != std::string::npos)) {
    return;  // an address is refused where files are placed
  }
  throw RowError(
      fmt::format("{}there is no file {}. Write <image:PATH> or <video:PATH> with a path "
                  "that begins at {}.",
                  place, path.empty() ? "in the tag" : shortened(path, kShownPath),
                  folder.empty() ? "the current folder" : folder));
}

/// Replaces tags with a path by tags, and lists the files of all tags of the message.
void take_paths(Message& message, const std::string& folder, const std::string& place) {
  std::string text;
  std::vector<MessagePicture> pictures;
  const auto take_plain = [&](std::string_view part) {
    for (const TagPlace& tag : tags_in(part)) pictures.push_back({.is_video = tag.is_video});
    text += part;
  };
  size_t from = 0;
  while (const std::optional<PathTag> tag = next_path_tag(message.content, from)) {
    take_plain(std::string_view(message.content).substr(from, tag->begin - from));
    require_file(tag->path, folder, place);
    text += tag->is_video ? kVideoTag : kImageTag;
    pictures.push_back(
        {.is_video = tag->is_video, .files = {tag->path}, .in_one_file = tag->is_video});
    from = tag->end;
  }
  take_plain(std::string_view(message.content).substr(from));
  message.content = std::move(text);
  message.pictures = std::move(pictures);
}

}  // namespace

void place_prompt_media(const nlohmann::ordered_json& row, const std::string& folder,
                        Conversation& prompt) {
  const std::string place = prompt.source.empty() ? "" : prompt.source + ": ";
  bool has_media = has_pictures(prompt) || has_files(row, kImages) || has_files(row, kVideos);
  for (const Message& message : prompt.messages) {
    has_media = has_media || next_path_tag(message.content, 0).has_value();
  }
  if (!has_media) return;
  for (Message& message : prompt.messages) {
    if (message.role == Role::kSystem) continue;
    if (message.pictures.empty()) take_paths(message, folder, place);
  }
  DatasetEntry entry;
  entry.columns.images = kImages;
  entry.columns.videos = kVideos;
  entry.media_dir = folder;
  place_pictures(entry, row, prompt);
}

}  // namespace longspan
