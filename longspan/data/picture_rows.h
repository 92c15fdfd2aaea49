// Encodes the pictures of conversations: from picture files to the tokens, features and positions
// of a sample.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/data/picture_encoding.h"
#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"
#include "longspan/rows/batch.h"

namespace longspan {

/// The pictures of one conversation, and the tokens that stand for the pictures in the
/// conversation's text.
struct PlacedPictures {
  /// A token of the text that becomes `num_tokens` equal tokens, one for each feature.
  struct Run {
    size_t picture;         // index in `pictures`
    int64_t first_feature;  // index among the features of all pictures
    int64_t num_tokens;
  };
  std::vector<Picture> pictures;
  std::vector<double> fps;  // for each picture: frames per second of a video, or 0
  std::vector<Run> runs;    // in the order of the text
};

/// Returns how a named template writes videos. `template_name`: empty for the model's own
/// chat_template, which writes videos in the form that the model's family takes.
inline VideoForm video_form(const std::string& template_name, const PictureEncoding& pictures) {
  return template_name.empty() ? pictures.videos() : template_format(template_name).videos;
}

/// Reads and places the pictures of rows. Thread-safe.
class PictureRows {
 public:
  /// `writes_tags`: the template gets the pictures' texts in place of tags; otherwise the template
  /// gets parts of messages, and prints the texts itself. `plain_tags`: tags of a message without
  /// files are plain text, as in an answer of a chat; otherwise such a message is an error.
  PictureRows(const PictureEncoding& encoding, VideoForm videos, bool writes_tags,
              bool plain_tags = false)
      : encoding_(encoding), videos_(videos), writes_tags_(writes_tags), plain_tags_(plain_tags) {}

  /// Returns the conversation in the form that the template takes, and its pictures. Reads the
  /// files, to get checksums and sizes, and decodes pictures. Throws RowError: a tag without a
  /// file, a text with a token that stands for pictures, a file that is not a picture or video,
  /// frames of several sizes. Throws NoVideoDecoder.
  Conversation prepared(const Conversation& conversation, PlacedPictures& pictures) const;

  /// Repeats the tokens that stand for pictures, and sets the features of all tokens. Throws
  /// RowError if the turns do not have each of these tokens once, in order.
  void expand(std::vector<Turn>& turns, const PlacedPictures& pictures,
              const std::string& source) const;

  /// Completes a sample of expanded turns, which may be cut: adds pictures, kFeatureColumn and
  /// positions. Drops pictures without a remaining token. Throws RowError if only some tokens of a
  /// picture remain. `cutoff_len`: for the message.
  void attach(Sample& sample, const PlacedPictures& pictures, int64_t cutoff_len,
              const std::string& source) const;

 private:
  struct ReadFile {
    PictureSize size;
    uint64_t checksum;
  };
  struct ReadVideo {
    VideoSample sample;
    uint64_t checksum, version;
  };
  ReadFile read(const std::string& path, const std::string& source) const;
  ReadVideo read_video(const std::string& path, const std::string& source) const;
  Picture look_at(MessagePicture& picture, const std::string& source) const;
  Picture look_at_frames(MessagePicture& video, const std::string& source) const;
  Picture look_at_video(MessagePicture& video, const std::string& source, double& fps) const;
  /// Sets the grid, the features and the text of a video. `times`: the times of the video's frames.
  void measure(Picture& picture, PictureSize size, const std::vector<double>& times,
               MessagePicture& video) const;
  void require_no_own_tokens(const Message& message, const std::string& source) const;
  at::Tensor positions_of(const std::vector<int64_t>& features,
                          const std::vector<Picture>& pictures,
                          const std::vector<double>& fps) const;

  const PictureEncoding& encoding_;
  VideoForm videos_;
  bool writes_tags_, plain_tags_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, ReadFile> files_;  // by path, size and time
  mutable std::map<std::string, ReadVideo> read_videos_;
};

}  // namespace longspan
