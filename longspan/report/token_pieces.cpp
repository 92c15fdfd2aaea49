#include "longspan/report/token_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "longspan/text/counted.h"
#include "longspan/text/decode_stream.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

constexpr size_t kPieceBytes = 1024;  // a token may stand for a long text

/// Consecutive tokens of one picture, or consecutive tokens of text with or without labels.
struct Run {
  int64_t begin, end;
  bool is_trained;
  int64_t picture;  // index among the sample's pictures; -1: text
};

std::vector<int64_t> pictures_of_tokens(const Sample& sample) {
  std::vector<int64_t> pictures(sample.input_ids.size(), -1);
  const auto column = sample.columns.find(kFeatureColumn);
  if (column == sample.columns.end()) return pictures;
  std::vector<int64_t> of_feature;
  for (size_t i = 0; i < sample.pictures.size(); ++i) {
    of_feature.resize(of_feature.size() + static_cast<size_t>(sample.pictures[i].num_features),
                      static_cast<int64_t>(i));
  }
  const int64_t* features = column->second.values.const_data_ptr<int64_t>();
  for (size_t i = 0; i < pictures.size(); ++i) {
    if (features[i] >= 0) pictures[i] = of_feature.at(static_cast<size_t>(features[i]));
  }
  return pictures;
}

std::vector<Run> runs_of(const Sample& sample) {
  const std::vector<int64_t> pictures = pictures_of_tokens(sample);
  std::vector<Run> runs;
  for (int64_t i = 0; i < std::ssize(sample.input_ids); ++i) {
    const bool is_trained = i > 0 && sample.labels[i] != kIgnoreLabel;
    if (runs.empty() || runs.back().is_trained != is_trained ||
        runs.back().picture != pictures[i]) {
      runs.push_back({i, i, is_trained, pictures[i]});
    }
    ++runs.back().end;
  }
  return runs;
}

/// Returns which tokens are shown. A picture counts as one token.
std::vector<bool> shown_tokens(const std::vector<Run>& runs, int64_t size,
                               const PieceLimits& most) {
  std::vector<bool> shown(size, true);
  std::vector<bool> counts(size, true);
  const auto hide = [&](int64_t begin, int64_t end) {
    std::fill(shown.begin() + begin, shown.begin() + end, false);
  };
  for (const Run& run : runs) {
    if (run.picture >= 0) {
      std::fill(counts.begin() + run.begin + 1, counts.begin() + run.end, false);
    } else if (run.end - run.begin > most.run) {
      const int64_t tail = most.run / 3;
      hide(run.begin + most.run - tail, run.end - tail);
    }
  }
  int64_t begin = 0, end = size;
  for (int64_t room = most.sample - most.sample / 4; begin < size && room > 0; ++begin) {
    room -= shown[begin] && counts[begin];
  }
  for (int64_t room = most.sample / 4; end > begin && room > 0; --end) {
    room -= shown[end - 1] && counts[end - 1];
  }
  hide(begin, end);
  return shown;
}

/// Collects the pieces of tokens, in order.
class Pieces {
 public:
  explicit Pieces(const Tokenizer& tokenizer) : tokenizer_(tokenizer), stream_(tokenizer) {}

  void add_token(int32_t id, bool is_trained) {
    ids_.push_back(id);
    is_trained_ = is_trained;
    add_text(stream_.step(id));
  }
  void add(TokenPiece piece) {
    end_text();
    pieces_.push_back(std::move(piece));
  }
  std::vector<TokenPiece> take() {
    end_text();
    return std::move(pieces_);
  }

 private:
  void add_text(const std::string& text) {
    if (text.empty()) return;
    const bool special = ids_.size() == 1 && is_special(ids_[0]);
    pieces_.push_back({special ? TokenPiece::Kind::kSpecial : TokenPiece::Kind::kText,
                       shortened(text, kPieceBytes), std::move(ids_), is_trained_});
    ids_ = {};
  }
  void end_text() {
    const std::string rest = stream_.finish();
    if (!ids_.empty()) add_text(rest.empty() ? "\xef\xbf\xbd" : rest);
  }
  bool is_special(int32_t id) {
    const auto [found, is_new] = special_.try_emplace(id, false);
    if (is_new) {
      found->second = tokenizer_.decode({id}, /*skip_special_tokens=*/true).empty() &&
                      !tokenizer_.decode({id}).empty();
    }
    return found->second;
  }

  const Tokenizer& tokenizer_;
  DecodeStream stream_;
  std::vector<TokenPiece> pieces_;
  std::vector<int32_t> ids_;  // tokens without text so far
  bool is_trained_ = false;
  std::unordered_map<int32_t, bool> special_;
};

std::string gap_text(int64_t num_tokens, int64_t num_trained) {
  const std::string trained = num_trained == 0            ? "none"
                              : num_trained == num_tokens ? "all"
                                                          : fmt::format("{} of them", num_trained);
  return fmt::format("[... {}, {} trained ...]", counted(num_tokens, "token"), trained);
}

}  // namespace

std::vector<TokenPiece> pieces_of(const Sample& sample, const Tokenizer& tokenizer,
                                  const PieceLimits& most) {
  const std::vector<Run> runs = runs_of(sample);
  const std::vector<bool> shown = shown_tokens(runs, std::ssize(sample.input_ids), most);
  Pieces pieces(tokenizer);
  int64_t num_left_out = 0, num_trained = 0;
  const auto end_gap = [&] {
    if (num_left_out == 0) return;
    pieces.add({TokenPiece::Kind::kGap, gap_text(num_left_out, num_trained)});
    num_left_out = num_trained = 0;
  };
  const auto leave_out = [&](const Run& run, int64_t number) {
    num_left_out += number;
    num_trained += run.is_trained ? number : 0;
  };
  for (const Run& run : runs) {
    if (run.picture >= 0) {
      const int64_t size = run.end - run.begin;
      if (!shown[run.begin]) {
        leave_out(run, size);
        continue;
      }
      end_gap();
      const bool is_video = sample.pictures[run.picture].is_video;
      pieces.add({TokenPiece::Kind::kPicture,
                  fmt::format("<{}: {}>", is_video ? "video" : "image", counted(size, "token")),
                  {},
                  run.is_trained});
      continue;
    }
    for (int64_t i = run.begin; i < run.end; ++i) {
      if (!shown[i]) {
        leave_out(run, 1);
        continue;
      }
      end_gap();
      pieces.add_token(sample.input_ids[i], run.is_trained);
    }
  }
  end_gap();
  return pieces.take();
}

}  // namespace longspan
