#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <set>

#include "longspan/data/media_columns.h"
#include "longspan/data/picture_rows.h"
#include "longspan/data/template_messages.h"
#include "longspan/testing/bitmap.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {
namespace {

using testing::bitmap;
using Ids = std::vector<int32_t>;
using Values = std::vector<int64_t>;
using Texts = std::vector<std::string>;

constexpr int32_t kImage = 7, kVideo = 8, kBegin = 5, kEnd = 6;

PictureEncoding encoding_of(PicturePositions positions) {
  PictureEncoding encoding;
  encoding.processor.patch_size = 14;
  encoding.processor.merge_size = 2;
  encoding.processor.min_pixels = 1;
  encoding.processor.max_pixels = 1 << 20;
  encoding.video_processor = {.min_pixels = 1, .max_pixels = 1 << 20};
  encoding.video_limits = {1 << 20, 1};
  encoding.image = {"<|image_pad|>", kImage};
  encoding.video = {"<|video_pad|>", kVideo};
  encoding.begin = {"<|vision_start|>", kBegin};
  encoding.end = {"<|vision_end|>", kEnd};
  encoding.positions = positions;
  encoding.tokens_per_second = 2.5;
  return encoding;
}

Values list_of(const at::Tensor& x) {
  const int64_t* const data = x.const_data_ptr<int64_t>();
  return {data, data + x.numel()};
}

template <typename Work>
std::string said_by(const Work& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

Texts files_of(const Message& message) {
  Texts files;
  for (const MessagePicture& picture : message.pictures) {
    for (const std::string& file : picture.files) files.push_back(file.substr(file.rfind('/') + 1));
  }
  return files;
}

}  // namespace

TEST_CASE("columns of pictures: paths, lists and videos go to the tags in order") {
  const DatasetFolder folder;
  for (const char* name : {"a.bmp", "b.bmp", "c.bmp"}) folder.write(name, bitmap(28, 28));
  folder.info(R"({"file_name": "d.json", "columns": {"prompt": "q", "response": "r",
                  "history": "h", "images": "i", "videos": "v"}})");
  folder.write("d.json", R"([
    {"q": "see <image>", "r": "x", "h": null, "i": "a.bmp", "v": null},
    {"q": "and <video><image>", "r": "<image>", "h": [["<image>", "y"]],
     "i": ["a.bmp", "b.bmp", "c.bmp"], "v": [["c.bmp", "a.bmp"]]},
    {"q": "none", "r": "x", "h": [], "i": [], "v": []}])");
  const std::vector<Conversation> rows = folder.rows();
  CHECK(files_of(rows[0].messages[0]) == Texts{"a.bmp"});
  CHECK(files_of(rows[1].messages[0]) == Texts{"a.bmp"});
  CHECK(files_of(rows[1].messages[2]) == Texts{"c.bmp", "a.bmp", "b.bmp"});
  CHECK(rows[1].messages[2].pictures[0].is_video);
  CHECK(files_of(rows[1].messages[3]) == Texts{"c.bmp"});
  CHECK(rows[2].messages[0].pictures.empty());
}

TEST_CASE("columns of pictures: what is wrong is said") {
  const DatasetFolder folder;
  folder.write("a.bmp", bitmap(28, 28));
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt",
                  "columns": {"messages": "conversations", "images": "i", "videos": "v"}})");
  const auto row = [&](const std::string& question, const std::string& columns) {
    folder.write("d.json", R"([{"conversations": [{"from": "human", "value": ")" + question +
                               R"("}, {"from": "gpt", "value": "b"}], )" + columns + "}]");
    return folder.complaint();
  };
  const std::string none = R"("i": [], "v": [])";
  CHECK(row("text", none).empty());
  CHECK_SAYS(row("<image>", none), "row 1: the messages have 1 tag <image>");
  CHECK_SAYS(row("<image>", none), "i names 0 files");
  CHECK_SAYS(row("text", R"("i": ["a.bmp"], "v": [])"), "0 tags <image>");
  CHECK_SAYS(row("<image>", R"("i": ["b.bmp"], "v": [])"), "there is no file");
  CHECK_SAYS(row("<image>", R"("i": ["https://a/b.png"], "v": [])"), "Nothing is fetched");
  CHECK_SAYS(row("<image>", R"("i": ["data:image/png;base64,AA"], "v": [])"), "base64");
  CHECK_SAYS(row("<image>", R"("i": [{"bytes": "x"}], "v": [])"), "is no path");
  CHECK_SAYS(row("<image>", R"("i": 3, "v": [])"), "wanted is a path or a list of paths");
  CHECK_SAYS(row("<video>", R"("i": [], "v": ["a.mp4"])"), "there is no file");
  CHECK_SAYS(row("<video>", R"("i": [], "v": "https://a/b.mp4")"), "Nothing is fetched");
  CHECK_SAYS(row("<video>", R"("i": [], "v": [3])"), "a video is a file or a list of the files");
  CHECK(row("<video>", R"("i": [], "v": "a.bmp")").empty());
  CHECK_SAYS(row("<video>", R"("i": [], "v": [[]])"), "an empty list");
  folder.write("d.json", R"([{"conversations": [{"from": "system", "value": "<image>"},
    {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "i": ["a.bmp"], "v": []}])");
  CHECK_SAYS(folder.complaint(), "the system message has the tag <image>");
  // Without such columns, tags are text.
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt"})");
  CHECK(row("<image>", none).empty());
}

TEST_CASE("parts of messages: pictures stand where their parts do") {
  const DatasetFolder folder;
  for (const char* name : {"a.bmp", "b.bmp"}) folder.write(name, bitmap(28, 28));
  folder.info(R"({"file_name": "d.json", "formatting": "openai",
                  "columns": {"messages": "messages", "images": "images"}})");
  const auto row = [&](const std::string& parts, const std::string& images) {
    folder.write("d.json", R"([{"messages": [{"role": "user", "content": [)" + parts +
                               R"(]}, {"role": "assistant", "content": "b"}], "images": )" +
                               images + "}]");
    return folder.complaint();
  };
  const std::string url =
      R"({"type": "image_url", "image_url": {"url": "file://)" + folder.path() + R"(/b.bmp"}})";
  CHECK(row(R"({"type": "text", "text": "x"}, {"type": "image"}, )" + url, R"(["a.bmp"])").empty());
  const Message message = folder.rows()[0].messages[0];
  CHECK(message.content == "x<image><image>");
  CHECK(files_of(message) == Texts{"a.bmp", "b.bmp"});
  CHECK(row(R"({"type": "video", "video": ["a.bmp", "b.bmp"]})", "null").empty());
  CHECK_SAYS(
      row(R"({"type": "image", "image": "a.bmp"}, {"type": "text", "text": "<image>"})", "null"),
      "Write each picture as a part");
  CHECK_SAYS(row(R"({"type": "audio"})", "null"), "pictures (image, image_url) and video");
}

TEST_CASE("pairs: both answers continue with the files behind the question's") {
  const DatasetFolder folder("dpo");
  for (const char* name : {"a.bmp", "b.bmp"}) folder.write(name, bitmap(28, 28));
  folder.info(R"({"file_name": "d.json", "ranking": true,
                  "columns": {"prompt": "q", "chosen": "c", "rejected": "r", "images": "i"}})");
  folder.write("d.json", R"([{"q": "<image>", "c": "<image>", "r": "no <image>",
                              "i": ["a.bmp", "b.bmp"]}])");
  const Conversation row = folder.rows()[0];
  CHECK(files_of(row.messages[1]) == Texts{"b.bmp"});
  CHECK(files_of(*row.rejected) == Texts{"b.bmp"});
  folder.write("d.json",
               R"([{"q": "<image>", "c": "<image>", "r": "no", "i": ["a.bmp", "b.bmp"]}])");
  CHECK_SAYS(folder.complaint(), "1 tag <image>");
}

namespace {

/// A conversation of a picture of 56 x 84 pixels and a video of three frames of 56 x 28.
struct Chat {
  testing::TemporaryFolder folder;
  Conversation conversation;

  Chat() {
    const std::string picture = folder.write("a.bmp", bitmap(56, 84));
    Texts frames;
    for (const char* name : {"1.png", "2.png", "3.png"}) {
      frames.push_back(folder.write(name, bitmap(56, 28)));
    }
    conversation.source = "row 1";
    conversation.messages = {{Role::kUser, "see <image> and <video>"}, {Role::kAssistant, "yes"}};
    conversation.messages[0].pictures = {{.files = {picture}}, {.is_video = true, .files = frames}};
  }
};

}  // namespace

TEST_CASE("picture rows: texts, grids, times and checksums") {
  const Chat chat;
  const PictureEncoding encoding = encoding_of(PicturePositions::kGrid);
  PlacedPictures whole, parts, frames;
  const Conversation written =
      PictureRows(encoding, VideoForm::kWhole, true).prepared(chat.conversation, whole);
  CHECK(written.messages[0].content ==
        "see <|vision_start|><|image_pad|><|vision_end|> and "
        "<|vision_start|><|video_pad|><|vision_end|>");
  REQUIRE(whole.pictures.size() == 2);
  CHECK((whole.pictures[0].grid == PictureGrid{1, 6, 4}));
  CHECK((whole.pictures[1].grid == PictureGrid{2, 2, 4}));  // the last frame is repeated
  CHECK(whole.pictures[1].files.size() == 4);
  CHECK(whole.pictures[1].file_checksums.size() == 4);
  CHECK(whole.pictures[1].num_features == 4);
  CHECK(whole.pictures[0].checksum != whole.pictures[1].checksum);
  const Conversation asked =
      PictureRows(encoding, VideoForm::kWhole, false).prepared(chat.conversation, parts);
  CHECK(template_message(asked.messages[0], call_shapes()[0], "").dump() ==
        R"({"role":"user","content":[{"type":"text","text":"see "},{"type":"image"},)"
        R"({"type":"text","text":" and "},{"type":"video"}]})");
  const Conversation stamped =
      PictureRows(encoding, VideoForm::kFrames, true).prepared(chat.conversation, frames);
  CHECK_SAYS(stamped.messages[0].content,
             " and <0.2 seconds><|vision_start|><|video_pad|><|vision_end|><1.0 seconds>");
  CHECK(frames.runs.size() == 3);
}

TEST_CASE("picture rows: tokens are repeated, with features and positions of each kind") {
  const Chat chat;
  const auto sample_of = [&](PicturePositions positions, VideoForm videos, const Ids& ids) {
    const PictureEncoding encoding = encoding_of(positions);
    const PictureRows rows(encoding, videos, true);
    PlacedPictures row;
    rows.prepared(chat.conversation, row);
    std::vector<Turn> turns = {{.source = ids, .target = {2}, .target_labels = {2}}};
    rows.expand(turns, row, "row 1");
    Sample sample{.input_ids = turns[0].source};
    sample.input_ids.push_back(2);
    turns[0].source_features.push_back(-1);
    sample.columns[kFeatureColumn] = {at::tensor(turns[0].source_features, at::kLong), -1};
    rows.attach(sample, row, 100, "row 1");
    return sample;
  };
  const Ids asked = {1, kBegin, kImage, kEnd, kBegin, kVideo, kEnd};
  const Sample grid = sample_of(PicturePositions::kGrid, VideoForm::kWhole, asked);
  CHECK(grid.input_ids == Ids{1, 5, 7, 7, 7, 7, 7, 7, 6, 5, 8, 8, 8, 8, 6, 2});
  CHECK(list_of(grid.columns.at(kFeatureColumn).values) ==
        Values{-1, -1, 0, 1, 2, 3, 4, 5, -1, -1, 6, 7, 8, 9, -1, -1});
  CHECK(list_of(grid.positions_AT[0]) == Values{0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 7, 8, 8, 9, 10});
  CHECK(list_of(grid.positions_AT[1]) == Values{0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 7, 7, 7, 9, 10});
  CHECK(list_of(grid.positions_AT[2]) == Values{0, 1, 2, 3, 2, 3, 2, 3, 5, 6, 7, 8, 7, 8, 9, 10});
  // A temporal patch lasts a second, which is 2.5 positions.
  const Sample seconds = sample_of(PicturePositions::kSeconds, VideoForm::kWhole, asked);
  CHECK(list_of(seconds.positions_AT[0].slice(0, 10, 14)) == Values{7, 7, 9, 9});
  const Sample frames =
      sample_of(PicturePositions::kFrames, VideoForm::kFrames,
                {1, kBegin, kImage, kEnd, 3, kBegin, kVideo, kEnd, 3, kBegin, kVideo, kEnd});
  CHECK(list_of(frames.positions_AT[0].slice(0, 8)) ==
        Values{5, 6, 7, 8, 8, 10, 11, 12, 13, 13, 15, 16});
  const Sample counted = sample_of(PicturePositions::kCounted, VideoForm::kWhole, asked);
  CHECK(!counted.positions_AT.defined());
  CHECK_SAYS(said_by([&] { sample_of(PicturePositions::kGrid, VideoForm::kWhole, {1, kImage}); }),
             "does not print 2 pictures");
  CHECK_SAYS(
      said_by([&] { sample_of(PicturePositions::kGrid, VideoForm::kWhole, {kVideo, kImage}); }),
      "once each and in order");
}

TEST_CASE("picture rows: cut pictures are refused, missing ones dropped") {
  const Chat chat;
  const PictureEncoding encoding = encoding_of(PicturePositions::kGrid);
  const PictureRows rows(encoding, VideoForm::kWhole, true);
  PlacedPictures row;
  rows.prepared(chat.conversation, row);
  const auto attached = [&](const Values& features) {
    Sample sample{.input_ids = Ids(features.size(), 1)};
    sample.columns[kFeatureColumn] = {at::tensor(features, at::kLong), -1};
    rows.attach(sample, row, 9, "row 1");
    return sample;
  };
  CHECK_SAYS(said_by([&] { attached({-1, 0, 1, 2}); }), "row 1: cutoff_len 9 cuts picture 1");
  CHECK_SAYS(said_by([&] { attached({0, 1, 2}); }), "3 of its tokens stay");
  CHECK_SAYS(said_by([&] { attached({0, 1, 2, 3, 4, 5, 6}); }), "cuts video 2");
  const Sample first = attached({-1, 0, 1, 2, 3, 4, 5});
  CHECK(first.pictures.size() == 1);
  const Sample second = attached({-1, 6, 7, 8, 9, -1});
  REQUIRE(second.pictures.size() == 1);
  CHECK(second.pictures[0].is_video);
  CHECK(list_of(second.columns.at(kFeatureColumn).values) == Values{-1, 0, 1, 2, 3, -1});
  const Sample none = attached({-1, -1});
  CHECK(none.pictures.empty());
  CHECK(!none.positions_AT.defined());
}

TEST_CASE("picture rows: what is wrong is said") {
  const Chat chat;
  const PictureEncoding encoding = encoding_of(PicturePositions::kGrid);
  const auto complaint = [&](const std::function<void(Conversation&)>& change) {
    Conversation changed = chat.conversation;
    change(changed);
    const PictureRows rows(encoding, VideoForm::kWhole, true);
    PlacedPictures row;
    return said_by([&] { rows.prepared(changed, row); });
  };
  CHECK(complaint([](Conversation&) {}).empty());
  CHECK_SAYS(complaint([](Conversation& row) { row.messages[0].content += "<image>"; }),
             "row 1: a message has the tag <image> or <video>, and no file for it");
  CHECK_SAYS(complaint([](Conversation& row) { row.messages[1].content = "<|image_pad|>"; }),
             "the token that stands for pictures");
  CHECK_SAYS(complaint([](Conversation& row) { row.messages[1].thoughts = "<image>"; }),
             "the thoughts of an answer");
  CHECK_SAYS(complaint([&](Conversation& row) {
               row.messages[0].pictures[1].files[1] = chat.folder / "a.bmp";
             }),
             "Give the frames of a video one size");
  CHECK_SAYS(complaint([&](Conversation& row) {
               row.messages[0].pictures[0].files[0] = chat.folder.write("text.png", "no picture");
             }),
             "row 1: ");
}

TEST_CASE("video grid: limits of a frame, or of all frames") {
  const VideoProcessor frame{.min_pixels = 3136, .max_pixels = 50176};
  CHECK((video_grid_of(3, {280, 140}, frame) == PictureGrid{2, 10, 20}));
  CHECK((video_grid_of(4, {1281, 721}, frame) == PictureGrid{2, 12, 20}));
  const VideoProcessor all{
      .patch_size = 16, .min_pixels = 4096, .max_pixels = 200000, .limits_all_frames = true};
  CHECK((video_grid_of(2, {320, 160}, all) == PictureGrid{1, 10, 20}));
  CHECK((video_grid_of(8, {320, 160}, all) == PictureGrid{4, 6, 12}));
  // Three frames count as four for the comparison with the limit, and as three for the scale.
  CHECK((video_grid_of(3, {320, 160}, all) == PictureGrid{2, 10, 22}));
  CHECK_SAYS(said_by([&] { video_grid_of(2, {10000, 28}, all); }), "cut the frames");
}

}  // namespace longspan
