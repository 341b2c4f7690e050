// Headers and indexes: what is sound, what each kind of damage is called, and where the tensors go.
// tests/unit/test_checkpoint.py has the messages as people see them; here are the corners of JSON and UTF-8.
#include "safetensors.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "checkpoint.hpp"
#include "errors.hpp"

namespace flashboot {
namespace {

using namespace std::string_literals;

std::shared_ptr<const SafetensorsHeader> header_of(std::string_view text, std::uint64_t data) {
  return std::make_shared<const SafetensorsHeader>(text, 8 + text.size() + data);
}

// Empty when it is sound.
std::string wrong_with(std::string_view text, std::uint64_t data = 0) {
  try {
    (void)header_of(text, data);
  } catch (const Malformed& error) {
    return error.what();
  } catch (const Truncated& error) {
    return "truncated: "s + error.what();
  }
  return {};
}

std::string entry(const std::string& name, int begin, int end) {
  const std::string size = std::to_string(end - begin);
  return '"' + name + R"(":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirBytes) {
  const auto header = header_of(" {" + entry("b", 3, 5) + " ,\n\t" + entry("a", 0, 3) + "\r} ", 5);
  ASSERT_EQ(header->tensors().size(), 2U);
  EXPECT_EQ(header->name(header->tensors()[0]), "a");
  EXPECT_EQ(header->name(header->tensors()[1]), "b");
  EXPECT_EQ(header->shape(header->tensors()[1])[0], 2U);
  EXPECT_EQ(header->data_bytes(), 5U);
}

TEST(Safetensors, KeysComeInAnyOrderAndMetadataIsTextOrNull) {
  EXPECT_EQ(wrong_with(R"({"__metadata__":{"a":"b","c":""},"x":{"data_offsets":[0,6],"shape":[],"dtype":"F64"}})", 8),
            "tensor 'x': F64 of shape [] has 8 bytes, data_offsets [0,6] 6");
  EXPECT_EQ(wrong_with(R"({"__metadata__":null})"), "");
  EXPECT_EQ(wrong_with(R"({"__metadata__":{"a":1}})"), "__metadata__ is not an object of strings");
  EXPECT_EQ(wrong_with(R"({"__metadata__":[]})"), "__metadata__ is not an object of strings");
  EXPECT_NE(wrong_with(R"({"__metadata__":{"a":"","a":""}})"), "");
  EXPECT_NE(wrong_with(R"({"__metadata__":{},"__metadata__":{}})"), "");
}

TEST(Safetensors, WhatIsNoJsonIsToldWithItsByte) {
  for (const std::string text :
       {"", "{", "}", "{]", "{\"a\"}", "{\"a\":}", "{\"a\":{}", "{,}", "{\"a\":{},}", "{\"a\":[1,]}", "{\"a\":[1 2]}",
        "{\"a\":01}", "{\"a\":+1}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":1e}", "{\"a\":-}", "{\"a\":--1}", "{\"a\":tru}",
        "{\"a\":NaN}", "{\"a\":Infinity}", "{\"a\":-Infinity}", "{\"a\":'b'}", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}", "{\"a\":\"\\u12", "{\"a\":\"b", "{\"a\":\"b\\", "{} {}", "{}x", "\xef\xbb\xbf{}"}) {
    EXPECT_NE(wrong_with(text).find("the header is no valid JSON: at byte "), std::string::npos) << text;
  }
  EXPECT_NE(wrong_with("{}\0"s).find("at byte 2"), std::string::npos);
  EXPECT_EQ(wrong_with("[1, \"\xc3\xa9\"]"), "the header is [1, \"\\xe9\"], not a JSON object");
  EXPECT_NE(wrong_with("{\"a\":-0}").find("-0 is no integer"), std::string::npos);
  EXPECT_EQ(wrong_with("{\"a\":-0.0}"), "tensor 'a': its entry is no object");
}

TEST(Safetensors, WhatIsNoUtf8IsToldWithItsByte) {
  for (const std::string bytes : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                                  "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xe2\x28\xa1"}) {
    const std::string filled = "{\"" + std::string(40, 'x') + bytes + "\":1}";
    EXPECT_EQ(wrong_with(filled), "the header is no UTF-8 at byte 42");
    EXPECT_EQ(wrong_with("{}" + bytes), "the header is no UTF-8 at byte 2");
  }
  const std::string last_ones = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf";
  EXPECT_EQ(wrong_with("{" + entry(last_ones, 0, 1) + "}", 1), "");
}

TEST(Safetensors, NamesAreWhatTheirEscapesSay) {
  const auto header = header_of("{" + entry(R"(\u0041\"\\\/\b\f\n\r\t\u20ac\ud83d\ude00)", 0, 1) + "}", 1);
  EXPECT_EQ(header->name(header->tensors()[0]), "A\"\\/\b\f\n\r\t\xe2\x82\xac\xf0\x9f\x98\x80");
  for (const std::string half : {R"(\ud800)", R"(\ud800\ud800)", R"(\udc00)", R"(\ud800x)", R"(\ud800\u0041)"}) {
    EXPECT_NE(wrong_with("{" + entry(half, 0, 1) + "}", 1).find("its name is no Unicode text"), std::string::npos);
  }
  EXPECT_EQ(wrong_with("{" + entry(R"(\u0061)", 0, 1) + "," + entry("a", 1, 2) + "}", 2),
            "the header is no valid JSON: key 'a' comes twice");
}

TEST(Safetensors, DepthIsLimited) {
  const auto nested = [](int depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_EQ(wrong_with(nested(127)), "tensor 'a': its entry is no object");
  EXPECT_EQ(wrong_with(nested(128)), "the header is nested too deep");
  EXPECT_EQ(wrong_with("{\"a\":" + std::string(1'000'000, '[')), "the header is nested too deep");
}

TEST(Safetensors, SizesAreExact) {
  const auto shaped = [](const std::string& shape, const std::string& offsets, std::uint64_t data = 0) {
    return wrong_with(R"({"a":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", data);
  };
  EXPECT_EQ(shaped("[9223372036854775808,3,0]", "[0,0]"),
            "tensor 'a': shape [9223372036854775808,3,0] is beyond 64 bits");
  EXPECT_EQ(shaped("[0,18446744073709551615]", "[0,0]"), "");
  for (const std::string none : {"[18446744073709551616]", "[-1]", "[1.0]", "[1e0]", "[true]", "[[1]]", "{}", "null"}) {
    EXPECT_EQ(shaped(none, "[0,1]", 1), "tensor 'a': shape " + none + " is no list of sizes");
    EXPECT_EQ(shaped("[1]", none, 1), "tensor 'a': data_offsets " + none + " is no pair of offsets");
  }
  EXPECT_EQ(shaped("[1]", "[0,1,1]", 1), "tensor 'a': data_offsets [0,1,1] is no pair of offsets");
  EXPECT_EQ(shaped("[2]", "[0,2]", 1), "truncated: has 1 data bytes; 1 of tensor 'a' at [0, 2) are missing");
  EXPECT_EQ(shaped("[1]", "[0,1]", 2), "its tensors end at data byte 1, the file has 2 data bytes");
}

TEST(Safetensors, MessagesAreShortAndAscii) {
  const std::string message = wrong_with("{\"" + std::string(1000, 'x') + "\xe2\x82\xac\":[]}");
  EXPECT_LT(message.size(), 200U);
  EXPECT_EQ(wrong_with("{\"it's\xe2\x82\xac\\u0000\":1}"), "tensor \"it's\\u20ac\\x00\": its entry is no object");
}

TEST(Safetensors, AFileShorterThanItsHeaderIsACallersMistake) {
  EXPECT_THROW((void)SafetensorsHeader("{}", 9), std::invalid_argument);
}

TEST(WeightMap, FilesAreSortedAndHaveNoDetours) {
  const WeightMap map(R"({"weight_map":{"a":"x/./b","b":"a","c":"x//b"},"metadata":{"total_size":1e9}})");
  EXPECT_EQ(map.files(), (std::vector<std::string>{"a", "x/b"}));
  const auto header = header_of("{" + entry("a", 0, 1) + "}", 1);
  EXPECT_EQ(map.absent(0, *header), "'b'");
  EXPECT_EQ(map.absent(1, *header), "'c'");
  EXPECT_EQ(map.absent(1, *header_of("{" + entry("c", 0, 1) + "," + entry("a", 1, 2) + "}", 2)), std::nullopt);
}

TEST(WeightMap, WhatLeavesTheFolderIsRefused) {
  for (const std::string file : {R"("")", R"(".")", R"("..")", R"("/a")", R"("a/../b")", R"("a\u0000")", R"("\ud800")",
                                 "3", "null", "[\"a\"]"}) {
    EXPECT_THROW(WeightMap("{\"weight_map\":{\"a\":" + file + "}}"), Malformed) << file;
  }
  EXPECT_THROW(WeightMap("{\"weight_map\":{\"a\":\"" + std::string(256, 'x') + "\"}}"), Malformed);
  EXPECT_THROW(WeightMap(R"({"weight_map":{"a":"x","a":"x"}})"), Malformed);
  EXPECT_THROW(WeightMap(R"({"weight_map":{}})"), Malformed);
  EXPECT_THROW(WeightMap(R"({"weight_map":{"a":"x"}} x)"), Malformed);
  EXPECT_THROW(WeightMap("[]"), Malformed);
}

TEST(CheckpointLayout, TensorsAreAlignedAndNoneComesTwice) {
  const auto one = header_of("{" + entry("a", 0, 65) + "," + entry("none", 65, 65) + "}", 65);
  const auto two = header_of("{" + entry("c", 0, 3) + "}", 3);
  const CheckpointLayout layout({one, two});
  EXPECT_EQ(layout.nbytes(), 192U);
  EXPECT_EQ(layout.size(), 3U);
  const std::vector<Extent> extents = layout.extents();
  ASSERT_EQ(extents.size(), 2U);  // one has no bytes
  EXPECT_EQ(extents[0].length, 65U);
  EXPECT_EQ(extents[1].file, 1U);
  EXPECT_EQ(extents[1].file_offset, two->data_start());
  EXPECT_EQ(extents[1].memory_offset, 128U);
  EXPECT_FALSE(layout.twice());
  const auto twice = CheckpointLayout({two, one, one}).twice();
  ASSERT_TRUE(twice);
  EXPECT_EQ(std::tuple(twice->first, twice->second), std::tuple(1U, 2U));
  EXPECT_EQ(CheckpointLayout({}).nbytes(), 0U);
}

}  // namespace
}  // namespace flashboot
