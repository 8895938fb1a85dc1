BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE introductions (
	role TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	introduced_at TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	CONSTRAINT pk_introductions PRIMARY KEY (role, sender)
);
INSERT INTO "introductions" VALUES('worker','alice@bot.example','2025-11-05T10:00:00.000Z','2026-03-02T07:15:09.000Z');
INSERT INTO "introductions" VALUES('builder','alice@bot.example','2025-11-06T10:00:00.123Z','2025-11-06T10:00:00.123Z');
INSERT INTO "introductions" VALUES('worker','bücher@bot.example','2026-01-01T00:00:00.000Z','2026-01-01T00:00:00.000Z');
INSERT INTO "introductions" VALUES('worker','Telegram:42','2026-02-02T02:02:02.200Z','2026-03-02T07:15:10.001Z');
CREATE TABLE sessions (
	role TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (role, sender)
);
INSERT INTO "sessions" VALUES('worker','alice@bot.example','0198f2c4-7b1e-7c3a-9d55-0a1b2c3d4e5f','2026-03-02T07:15:09.000Z');
INSERT INTO "sessions" VALUES('builder','alice@bot.example','thread_ключ/1','2026-03-02T07:15:09.250Z');
INSERT INTO "sessions" VALUES('worker','bob@bot.example','{"thread": "t-9", "note": "it''s \"quoted\""}','2026-02-28T23:59:59.999Z');
INSERT INTO "sessions" VALUES('worker','Telegram:42','s''; DROP TABLE sessions; --','2026-03-02T07:15:10.001Z');
INSERT INTO "sessions" VALUES('builder','bücher@bot.example','日本
🐟','2025-12-31T23:59:59.999Z');
COMMIT;
