#include "longspan/rows/shared_prompt.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace longspan {
namespace {

// The number of tokens, among the first `count`, before the first feature of a picture that the
// samples do not share.
int64_t num_before_other_pictures(const Sample& a, const Sample& b, int64_t count) {
  int64_t features = 0;
  for (size_t i = 0; i < std::min(a.pictures.size(), b.pictures.size()); ++i) {
    if (a.pictures[i] != b.pictures[i]) break;
    features += a.pictures[i].num_features;
  }
  const auto column = a.columns.find(kFeatureColumn);
  if (column == a.columns.end() || a.pictures == b.pictures) return count;
  const at::Tensor own = column->second.values.narrow(0, 0, count).ge(features).nonzero();
  return own.size(0) == 0 ? count : own[0][0].item<int64_t>();
}

/// The rows of a tensor [tokens, ...] as bytes.
struct ByteRows {
  at::Tensor values;
  int64_t row_bytes;
  std::vector<char> padding = {};  // a row of a column's padding

  ByteRows(const at::Tensor& x, int64_t num_tokens)
      : values(x.contiguous()),
        row_bytes(num_tokens == 0 ? 0 : static_cast<int64_t>(values.nbytes()) / num_tokens) {}
  const char* at(int64_t t) const {
    return static_cast<const char*>(values.const_data_ptr()) + t * row_bytes;
  }
};

/// A document with its data for comparisons.
class ComparedDocument {
 public:
  ComparedDocument(const Sample& sample, int64_t first_token)
      : sample(&sample), begin(first_token), spans(two_way_spans(sample)) {
    for (const auto& [name, column] : sample.columns) {
      ByteRows& rows = columns_.emplace_back(column.values, length());
      const at::Tensor padding =
          at::full_like(column.values.narrow(0, 0, std::min<int64_t>(1, length())), column.padding);
      rows.padding.resize(padding.nbytes());
      std::memcpy(rows.padding.data(), padding.const_data_ptr(), padding.nbytes());
    }
    if (sample.positions_AT.defined()) {
      positions_.emplace_back(sample.positions_AT.transpose(0, 1), length());
    }
  }

  int64_t length() const { return std::ssize(sample->input_ids); }
  bool predicts_at(int64_t t) const { return sample->labels[t + 1] != kIgnoreLabel; }
  bool has_padding_at(int64_t t) const {
    return std::ranges::all_of(columns_, [&](const ByteRows& rows) {
      return std::memcmp(rows.at(t), rows.padding.data(), rows.row_bytes) == 0;
    });
  }
  bool equal_columns_at(const ComparedDocument& other, int64_t t) const {
    return equal_at(columns_, other.columns_, t);
  }
  bool equal_positions_at(const ComparedDocument& other, int64_t t) const {
    return positions_.size() == other.positions_.size() &&
           equal_at(positions_, other.positions_, t);
  }
  /// Returns the end of the two-way span that begins at t, else t + 1.
  int64_t end_of_span_at(int64_t t) const {
    const auto span = std::ranges::find(spans, t, &TwoWaySpan::begin);
    return span == spans.end() ? t + 1 : span->end;
  }

  const Sample* sample;
  int64_t begin;  // of the document, in the concatenation of all documents
  std::vector<TwoWaySpan> spans;

 private:
  static bool equal_at(const std::vector<ByteRows>& a, const std::vector<ByteRows>& b, int64_t t) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(a[i].at(t), b[i].at(t), a[i].row_bytes) != 0) return false;
    }
    return true;
  }

  std::vector<ByteRows> columns_, positions_;
};

using Documents = std::vector<const ComparedDocument*>;

/// True if the documents have token t + 1 and its data in common.
bool have_next_in_common(const Documents& documents, int64_t t) {
  const ComparedDocument& first = *documents.front();
  return std::ranges::all_of(documents, [&](const ComparedDocument* document) {
    return document->equal_columns_at(first, t + 1) && document->equal_positions_at(first, t + 1);
  });
}

/// True if the documents can share token t. The token's data and the next token must be equal, and
/// at most one document may predict a label from the token. That document's columns count; where
/// others differ, they have padding.
bool share_token(const Documents& documents, int64_t t, SharedTokens shared) {
  const ComparedDocument& first = *documents.front();
  const ComparedDocument* predicts = nullptr;
  for (const ComparedDocument* document : documents) {
    if (t + 1 >= document->length()) return false;
    const std::vector<int32_t>& ids = document->sample->input_ids;
    if (ids[t] != first.sample->input_ids[t] || ids[t + 1] != first.sample->input_ids[t + 1] ||
        !document->equal_positions_at(first, t)) {
      return false;
    }
    if (!document->predicts_at(t)) continue;
    if (predicts != nullptr || shared == SharedTokens::kWithoutLabels) return false;
    predicts = document;
  }
  if (shared == SharedTokens::kWithoutLabels && !have_next_in_common(documents, t)) return false;
  const ComparedDocument& counts = predicts == nullptr ? first : *predicts;
  return std::ranges::all_of(documents, [&](const ComparedDocument* document) {
    return document->equal_columns_at(counts, t) ||
           (predicts != nullptr && document->has_padding_at(t));
  });
}

/// Returns the end of the tokens from t on that the documents share because of token t: t, t + 1,
/// or the end of a two-way span, which is shared whole.
int64_t shared_from(const Documents& documents, int64_t t, SharedTokens shared) {
  int64_t end = t + 1;
  for (const ComparedDocument* document : documents) {
    end = std::max(end, document->end_of_span_at(t));
  }
  for (int64_t i = t; i < end; ++i) {
    if (!share_token(documents, i, shared)) return t;
  }
  return end;
}

/// Builds a row of trees from the documents of an example.
class TreeRow {
 public:
  explicit TreeRow(SharedTokens shared) : shared_(shared) {}

  std::vector<Document> documents;
  std::vector<int64_t> index;  // into the concatenation of all documents

  void add(const Documents& all) {
    for (const Documents& some : classes_at(all, 0)) {
      document_ = {};
      first_ = std::ssize(index);
      add_segment(some, 0, kNoParent);
      document_.length = std::ssize(index) - first_;
      if (document_.segments.size() == 1) document_.segments.clear();
      documents.push_back(document_);
    }
  }

 private:
  /// Divides documents into classes that share token t, in the order of their first members.
  std::vector<Documents> classes_at(const Documents& all, int64_t t) const {
    std::vector<Documents> classes;
    for (const ComparedDocument* document : all) {
      const auto fits = [&](Documents some) {
        if (t >= most_shared(*some.front(), *document)) return false;
        some.push_back(document);
        return shared_from(some, t, shared_) > t;
      };
      const auto found = std::ranges::find_if(classes, fits);
      if (found == classes.end()) {
        classes.push_back({document});
      } else {
        found->push_back(document);
      }
    }
    return classes;
  }

  /// The last token before another picture is not shared, as the last token before another token.
  static int64_t most_shared(const ComparedDocument& a, const ComparedDocument& b) {
    return num_before_other_pictures(*a.sample, *b.sample, std::min(a.length(), b.length())) - 1;
  }

  void add_segment(const Documents& some, int64_t begin, int64_t parent) {
    const int64_t number = std::ssize(document_.segments);
    const int64_t place = std::ssize(index) - first_;
    document_.segments.push_back({place, parent});
    int64_t end = begin;
    if (some.size() == 1) {
      end = some.front()->length();
    } else {
      int64_t most = INT64_MAX;
      for (const ComparedDocument* document : some) {
        most = std::min(most, most_shared(*some.front(), *document));
      }
      for (int64_t next = begin; next < most; end = next) {
        next = shared_from(some, end, shared_);
        if (next == end) break;
      }
    }
    for (int64_t t = begin; t < end; ++t) index.push_back(owner(some, t)->begin + t);
    for (const TwoWaySpan& span : some.front()->spans) {
      if (span.begin < begin || span.end > end) continue;
      document_.two_way.push_back({span.begin - begin + place, span.end - begin + place});
    }
    if (some.size() == 1) return;
    for (const Documents& branch : classes_at(some, end)) add_segment(branch, end, number);
  }

  /// The document whose data a shared token has.
  static const ComparedDocument* owner(const Documents& some, int64_t t) {
    if (some.size() == 1) return some.front();
    const auto predicts = std::ranges::find_if(
        some, [t](const ComparedDocument* document) { return document->predicts_at(t); });
    return predicts == some.end() ? some.front() : *predicts;
  }

  SharedTokens shared_;
  Document document_ = {};
  int64_t first_ = 0;  // token of document_ in the row
};

}  // namespace

Batch collate_shared(const std::vector<const Example*>& examples, SharedTokens shared) {
  TreeRow row(shared);
  std::vector<const Sample*> samples;
  int64_t begin = 0;  // of a document in the concatenation
  for (const Example* example : examples) {
    std::vector<ComparedDocument> compared;
    compared.reserve(example->documents.size());
    std::vector<const Sample*> own;
    for (const Sample& document : example->documents) own.push_back(&document);
    check_alike(own);
    Documents all;
    for (const Sample* document : own) {
      all.push_back(&compared.emplace_back(*document, begin));
      begin += std::ssize(document->input_ids);
      samples.push_back(document);
    }
    row.add(all);
  }
  return take(collate(samples), row.index, Packing::from_documents(row.documents));
}

}  // namespace longspan
