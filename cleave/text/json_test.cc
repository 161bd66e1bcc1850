#include "cleave/text/json.h"

#include <array>
#include <ctime>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave::json_test {
namespace {

using ::testing::HasSubstr;

/// The text of the Error(kFormat) that `action` throws; a test failure if it throws none.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string parse_error(std::string_view text) {
  return error_of([&] { Json::parse(text, "f.json"); });
}

TEST(Json, ValidTexts_DumpAsCompactJson) {
  const std::array<std::pair<std::string, std::string>, 14> cases{{
      {"0", "0"},
      {" -0.50e+07\n", "-0.50e+07"},
      {"\t[ ]\r\n", "[]"},
      {"{ }", "{}"},
      {R"([1, [2, [3]], {"a" : null}])", R"([1,[2,[3]],{"a":null}])"},
      {R"({"b":true,"a":false})", R"({"b":true,"a":false})"},
      {R"("\u0041\n\/\"\\")", R"("A\u000a/\"\\")"},
      {R"("\ud83d\ude00")", "\"\xF0\x9F\x98\x80\""},
      {R"("\u0000")", R"("\u0000")"},
      {"\"\x7F\xC2\x80\"", "\"\x7F\xC2\x80\""},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {R"({"":{"":0}})", R"({"":{"":0}})"},
      {"1E5", "1E5"},
      {"[1e400]", "[1e400]"},
  }};
  for (const auto& [text, want] : cases) {
    EXPECT_EQ(Json::parse(text, "t").dump(), want) << text;
    EXPECT_EQ(Json::parse(want, "t").dump(), want) << text;
  }
}

// The offset is that of the first invalid byte, or of the construct that it breaks.
TEST(Json, InvalidTexts_AreRefusedWithTheirByte) {
  const std::array<std::pair<std::string, int>, 48> cases{{
      {"", 0},
      {" ", 1},
      {"nul", 0},
      {"True", 0},
      {"NaN", 0},
      {"Infinity", 0},
      {"-Infinity", 1},
      {"+1", 0},
      {"01", 1},
      {"-01", 2},
      {"1.", 2},
      {".5", 0},
      {"1e", 2},
      {"1e+", 3},
      {"0x10", 1},
      {"1 2", 2},
      {"[1,]", 3},
      {"[1 2]", 3},
      {"[,1]", 1},
      {"[1", 2},
      {"]", 0},
      {"{", 1},
      {R"({"a")", 4},
      {R"({"a":})", 5},
      {R"({"a":1,})", 7},
      {R"({a:1})", 1},
      {R"({"a":1 "b":2})", 7},
      {R"({'a':1})", 1},
      {R"({"a":1]})", 6},
      {R"("abc)", 0},
      {R"("\x41")", 2},
      {R"("\u12g4")", 5},
      {R"("\u12)", 5},
      {R"("\ud800")", 1},
      {R"("\ud800\u0041")", 1},
      {R"("\udc00")", 1},
      {R"("\ud800x")", 1},
      {"\"a\nb\"", 2},
      {std::string("\"a\0b\"", 5), 2},
      {std::string("[1\0]", 4), 2},
      {"\"\xFF\"", 1},
      {"\"a\xC3\"", 2},
      {"\"\xED\xA0\x80\"", 1},
      {"\"\xC0\x80\"", 1},
      {"\xEF\xBB\xBF{}", 0},
      {"[1] // no", 4},
      {R"({"a":1,"a":2})", 11},
      {R"({"a":1,"\u0061":2})", 16},
  }};
  for (const auto& [text, byte] : cases) {
    EXPECT_THAT(parse_error(text), HasSubstr(str("(byte ", byte, ")"))) << text;
    EXPECT_THAT(parse_error(text), HasSubstr("f.json: ")) << text;
  }
}

TEST(Json, DepthBomb_IsRefusedAtTheLimit) {
  const std::string open(100000, '[');
  EXPECT_THAT(parse_error(open), HasSubstr("nested deeper than 128 levels (byte 128)"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"a":)";
  EXPECT_THAT(parse_error(objects), HasSubstr("nested deeper than 128 levels"));
  const std::string just = std::string(128, '[') + std::string(128, ']');
  EXPECT_EQ(Json::parse(just, "t").dump(), just);
}

TEST(Json, TextLongerThanTheLimit_IsRefused) {
  EXPECT_THAT(error_of([] { Json::parse("[1, 2]", "f", {.max_bytes = 5}); }),
              HasSubstr("6 bytes; at most 5"));
}

TEST(Json, AsInt_TakesIntegersOfTheRangeOnly) {
  const Json json = Json::parse(
      R"({"a": 12, "b": 12.0, "c": 1e3, "d": 9223372036854775807, "e": 9223372036854775808,
          "f": -9223372036854775808, "g": "12", "h": -0})",
      "config.json");
  EXPECT_EQ(json.at("a").as_int(), 12);
  EXPECT_EQ(json.at("d").as_int(), INT64_MAX);
  EXPECT_EQ(json.at("f").as_int(), INT64_MIN);
  EXPECT_EQ(json.at("h").as_int(), 0);
  for (const char* key : {"b", "c", "e", "g"}) {
    EXPECT_FALSE(json.at(key).is_int()) << key;
    EXPECT_THAT(error_of([&] { (void)json.at(key).as_int(); }), HasSubstr("expected an integer"));
  }
  EXPECT_EQ(error_of([&] { (void)json.at("b").as_int(1, 64); }),
            "config.json: \"b\" is 12.0; expected an integer in [1, 64] (byte 15)");
  EXPECT_THAT(error_of([&] { (void)json.at("a").as_int(1, 11); }), HasSubstr("in [1, 11]"));
  EXPECT_THAT(error_of([&] { (void)json.at("a").as_int(13); }), HasSubstr("at least 13"));
}

TEST(Json, AsNumber_RefusesWhatADoubleCannotHold) {
  const Json json = Json::parse(R"([1e-6, -2.5E3, 7, 1e400, -1e400, 1.7976931348623157e308])", "t");
  EXPECT_EQ(json.at(0).as_number(), 1e-6);
  EXPECT_EQ(json.at(1).as_number(), -2500.0);
  EXPECT_EQ(json.at(2).as_number(), 7.0);
  EXPECT_THAT(error_of([&] { (void)json.at(3).as_number(); }), HasSubstr("\"[3]\" is 1e400"));
  EXPECT_THAT(error_of([&] { (void)json.at(4).as_number(); }), HasSubstr("64-bit float"));
  EXPECT_EQ(json.at(5).as_number(), 1.7976931348623157e308);
}

TEST(Json, WrongTypes_NamePathValueAndByte) {
  const Json json = Json::parse(R"({"rope": {"list": [0, {"factor": "eight"}]}})", "c.json");
  const Json factor = json.at("rope").at("list").at(1).at("factor");
  EXPECT_EQ(error_of([&] { (void)factor.as_number(); }),
            "c.json: \"rope.list[1].factor\" is \"eight\"; expected a number (byte 33)");
  EXPECT_THAT(error_of([&] { (void)factor.as_bool(); }), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of([&] { (void)factor.size(); }), HasSubstr("expected an array or an object"));
  EXPECT_THAT(error_of([&] { (void)json.as_string(); }), HasSubstr("the document is {"));
  EXPECT_THAT(error_of([&] { (void)json.at("rope").at("type"); }),
              HasSubstr("\"rope.type\" is missing in the object at byte 9"));
  EXPECT_THAT(error_of([&] { (void)json.at("rope").at("list").at(2); }), HasSubstr("found 2"));
  EXPECT_THAT(error_of([&] { (void)json.at("rope").at("list").at("x"); }),
              HasSubstr("expected an object"));
  EXPECT_THAT(error_of([&] { (void)json.at("rope").at("list").key(0); }),
              HasSubstr("expected an object"));
}

TEST(Json, LongValueInAnError_IsTruncatedAtACharacter) {
  const Json json = Json::parse("\"" + std::string(58, 'a') + "\xE2\x82\xAC and more\"", "t");
  const std::string text = error_of([&] { (void)json.as_bool(); });
  EXPECT_THAT(text, HasSubstr(std::string(58, 'a') + "...;"));
}

TEST(Json, MembersWithDefaults_TreatNullAsMissing) {
  const Json json = Json::parse(R"({"i": 3, "n": null, "x": 0.5, "t": true, "s": "word"})", "t");
  EXPECT_TRUE(json.has("i"));
  EXPECT_FALSE(json.has("n"));
  EXPECT_FALSE(json.has("none"));
  EXPECT_TRUE(json.at("n").is(Json::Type::kNull));
  EXPECT_EQ(json.int_or("i", 9), 3);
  EXPECT_EQ(json.int_or("n", 9), 9);
  EXPECT_EQ(json.number_or("x", 1), 0.5);
  EXPECT_EQ(json.number_or("none", 1), 1.0);
  EXPECT_TRUE(json.bool_or("t", false));
  EXPECT_TRUE(json.bool_or("n", true));
  EXPECT_EQ(json.string_or("s", "x"), "word");
  EXPECT_EQ(json.string_or("none", "x"), "x");
  EXPECT_THROW((void)json.int_or("s", 9), Error);
  EXPECT_THROW((void)json.int_or("i", 9, 4, 5), Error);
}

TEST(Json, Members_StayInFileOrder) {
  const Json json = Json::parse(R"({"z": 1, "a": 2, "m": 3})", "t");
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json.key(0), "z");
  EXPECT_EQ(json.key(1), "a");
  EXPECT_EQ(json.at(2).as_int(), 3);
  EXPECT_EQ(json.at(0).offset(), 6U);
}

TEST(Json, LargeObject_FindsEveryMemberQuickly) {
  std::string text = "{";
  constexpr int kMembers = 128000;
  for (int i = 0; i < kMembers; ++i) {
    text += str(i == 0 ? "" : ",", "\"same_prefix_", (i * 7919LL) % kMembers, "\":", i);
  }
  text += "}";
  const std::clock_t start = std::clock();  // CPU time, because the machine may be busy
  const Json json = Json::parse(text, "t");
  for (int i = 0; i < kMembers; ++i) {
    ASSERT_EQ(json.at(str("same_prefix_", (i * 7919LL) % kMembers)).as_int(), i);
  }
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
}

TEST(Json, File_IsReadOrRefusedByName) {
  const std::string path = ::testing::TempDir() + "json_test.json";
  std::ofstream(path) << R"({"a": [1)";
  EXPECT_THAT(error_of([&] { Json::parse_file(path); }),
              HasSubstr("json_test.json: found the end"));
  std::ofstream(path) << R"({"a": [1]})";
  EXPECT_EQ(Json::parse_file(path).dump(), R"({"a":[1]})");
  EXPECT_THAT(error_of([&] { Json::parse_file(path, {.max_bytes = 9}); }), HasSubstr("9"));
  try {
    Json::parse_file(path + ".none");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
  }
  EXPECT_THROW(Json::parse_file(::testing::TempDir()), Error);
}

}  // namespace
}  // namespace cleave::json_test
