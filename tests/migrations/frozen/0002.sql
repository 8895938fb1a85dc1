BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
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
CREATE TABLE pending_approval (
	job_id TEXT NOT NULL, 
	requested_by TEXT NOT NULL, 
	commit_message TEXT NOT NULL, 
	created_at TEXT NOT NULL, 
	CONSTRAINT pk_pending_approval PRIMARY KEY (job_id)
);
INSERT INTO "pending_approval" VALUES('job-7','alice@bot.example','Add a licence

O''Brien''s words: "MIT" – naïve, ja?','2026-05-10T18:30:00.500Z');
INSERT INTO "pending_approval" VALUES('job-8','bob@bot.example','Räume auf','2026-05-11T06:00:00.000Z');
INSERT INTO "pending_approval" VALUES('job-9','Telegram:42','-- nothing was stashed
','2026-05-11T06:00:00.000Z');
CREATE TABLE pending_approval_repo (
	job_id TEXT NOT NULL, 
	repo_dir TEXT NOT NULL, 
	CONSTRAINT pk_pending_approval_repo PRIMARY KEY (job_id, repo_dir), 
	CONSTRAINT fk_pending_approval_repo_job_id_pending_approval FOREIGN KEY(job_id) REFERENCES pending_approval (job_id) ON DELETE CASCADE
);
INSERT INTO "pending_approval_repo" VALUES('job-7','/srv/git/eins');
INSERT INTO "pending_approval_repo" VALUES('job-7','/srv/git/two and a half');
INSERT INTO "pending_approval_repo" VALUES('job-7','/srv/git/l''été');
INSERT INTO "pending_approval_repo" VALUES('job-8','/srv/git/дом');
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
CREATE TABLE start_pending (
	job_id TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	requested_by TEXT NOT NULL, 
	body TEXT NOT NULL, 
	created_at TEXT NOT NULL, 
	CONSTRAINT pk_start_pending PRIMARY KEY (job_id)
);
INSERT INTO "start_pending" VALUES('job-1','alice@bot.example','worker','Füge eine "Lizenz" hinzu:

	MIT, bitte 🐟
','2026-05-11T12:00:00.000Z');
INSERT INTO "start_pending" VALUES('job-1 (2)','Telegram:42','Telegram:42','it''s 100% done; isn''t it? 日本','2026-05-11T12:00:00.001Z');
INSERT INTO "start_pending" VALUES('2026-05-11-ü','bob@bot.example','bob@bot.example','','2026-05-12T00:00:00.000Z');
COMMIT;
